"""Waits for the ends of processes that are not this one's children."""

import time
from collections.abc import Iterable
from pathlib import Path


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has asked about yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def all_end(pids: Iterable[int], within_s: float = 30.0) -> bool:
    """Whether they do in this time: what is killed may run until it is next scheduled."""
    left, end = set(pids), time.monotonic() + within_s
    while (left := {pid for pid in left if not is_gone(pid)}) and time.monotonic() < end:
        time.sleep(0.05)
    return not left
