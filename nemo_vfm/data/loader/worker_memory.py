"""Computes how much memory one worker may take, and measures how much this process has taken.

Only private memory counts, and only what was taken since the process began. A fork begins with its parent's pages, and
batches that wait for the trainer are in shared memory, which `max_ahead_gb` limits.
"""

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_LEAST_BYTES = 512 << 20  # decoders and allocators keep so much without any leak


def part_of(share: float | None, num_workers: int) -> int | None:
    """What each of a rank's workers may grow by, in bytes; None where nothing is limited.

    Ranks on one machine share it, as many as torchrun's LOCAL_WORLD_SIZE says.
    """
    if share is None or not num_workers:
        return None
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    workers = num_workers * (int(ranks) if ranks.isdecimal() and int(ranks) else 1)
    return max(_LEAST_BYTES, int(share * _machine_bytes() / workers))


def own_bytes() -> int:
    """Memory that this process holds and shares with no file; 0 on systems that do not tell (all but Linux)."""
    try:
        _, resident, shared = _STATM.read_bytes().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _machine_bytes() -> int:
    """RAM, or what a container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [path.read_text().strip() for path in _LIMITS if path.is_file()]
    return min([total, *(int(limit) for limit in limits if limit.isdecimal())])
