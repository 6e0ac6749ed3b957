"""Follows what a launch's jobs write into their logs."""

import sys
import time
from pathlib import Path

from launcher import local_log
from launcher.slurm import slurm
from launcher.slurm.queue import PATIENCE_S, queued
from launcher.state.launch_folder import KeptLaunch
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import plain

_LOOK_S = 1.0
_ASK_S = 10.0  # between two questions to Slurm, which has others to serve
_MOST_BYTES = 4 << 20


def log_files(kept: KeptLaunch, name: str | None = None) -> list[Path]:
    """The logs of the latest numbers of its jobs, in order; those of an array's tasks follow one another."""
    if kept.is_local:
        return local_log.latest(kept.folder)
    found: list[Path] = []
    for job in kept.jobs:
        for number in kept.numbers(job) if name in (None, job["name"]) else ():
            found += sorted((kept.folder / "logs").glob(f"*-{number}.out"))
            found += sorted((kept.folder / "logs").glob(f"*-{number}_*.out"))
    return [file for file in found if file.is_file()]  # a FIFO would be read for ever


class Tail:
    """The ends of some logs.

    Args:
        kept: the launch.
        name: of one of its jobs; None is all.
    """

    def __init__(self, kept: KeptLaunch, name: str | None) -> None:
        self._kept, self._name = kept, name
        self._read: dict[Path, int] = {}
        self._last: Path | None = None
        self._asked, self._answered = 0.0, time.monotonic()

    def show(self, lines: int) -> None:
        """The last lines of each."""
        for file in log_files(self._kept, self._name):
            with file.open("rb") as opened:
                opened.seek(max(0, file.stat().st_size - _MOST_BYTES))
                text = opened.read(_MOST_BYTES)
                self._read[file] = opened.tell()
            if end := b"".join(text.splitlines(keepends=True)[-lines:] if lines > 0 else []):
                self._say(file, end)

    def follow(self) -> None:
        """Until no job waits or runs."""
        while True:
            over = self._is_over()
            self._more()
            if over:
                return
            time.sleep(_LOOK_S)

    def _more(self) -> None:
        for file in log_files(self._kept, self._name):
            with file.open("rb") as opened:
                opened.seek(self._read.get(file, 0))
                text = opened.read(_MOST_BYTES)
            self._read[file] = self._read.get(file, 0) + len(text)
            if text:
                self._say(file, text)

    def _is_over(self) -> bool:
        if self._kept.is_local:
            return local_log.is_over(self._kept.folder)
        if time.monotonic() - self._asked < _ASK_S and self._asked:
            return False
        self._asked = time.monotonic()
        try:
            found = queued(self._kept)
        except UserError:
            if slurm.is_here() and self._asked - self._answered < PATIENCE_S:
                return False
            raise
        self._answered = self._asked
        jobs = [job for job in self._kept.jobs if self._name in (None, job["name"])]
        ours = {number for job in jobs for number in self._kept.numbers(job)}
        return not any(one.waits_or_runs for one in found.values() if one.array in ours)

    def _say(self, file: Path, text: bytes) -> None:
        if file != self._last and (self._last is not None or len(self._kept.jobs) > 1):
            sys.stdout.write(f"==> {file.name if self._kept.is_local else file.stem} <==\n")
        self._last = file
        # Bars of progress go back to the beginning of their line; shown here, each state is a line.
        sys.stdout.write(plain(text.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")))
        sys.stdout.flush()
