"""Follows what a launch's jobs write into their logs, and shows the output of a run on this machine.

There, a terminal gets moving bars, which no file should hold. Elsewhere the run writes two files itself, so it
continues, and continues to write, even after the process that shows them is gone.
"""

import codecs
import fcntl
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from launcher.slurm import slurm
from launcher.slurm.job_status import PATIENCE_S, live_jobs
from launcher.state.launch_folder import KeptLaunch
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import scrub

_SHOW_S = 0.1
_PIECE_BYTES = 1 << 20
_LOOK_S = 1.0
_ASK_S = 10.0  # between two questions to Slurm, which has others to serve
_MAX_BYTES = 4 << 20


def log_files(kept: KeptLaunch, name: str | None = None) -> list[Path]:
    """The logs of the latest numbers of its jobs, in order; those of an array's tasks follow one another."""
    if kept.is_local:
        return latest_logs(kept.folder)
    found: list[Path] = []
    for job in kept.jobs:
        for number in kept.numbers(job) if name in (None, job["name"]) else ():
            found += sorted((kept.folder / "logs").glob(f"*-{number}.out"))
            found += sorted((kept.folder / "logs").glob(f"*-{number}_*.out"))
    return [file for file in found if file.is_file()]  # a FIFO would be read for ever


class Tail:
    """The ends of a launch's logs, or of those of one job by its name."""

    def __init__(self, kept: KeptLaunch, name: str | None) -> None:
        self._kept, self._name = kept, name
        self._read: dict[Path, int] = {}
        self._last: Path | None = None
        self._asked, self._answered = 0.0, time.monotonic()

    def show(self, lines: int) -> None:
        """The last lines of each."""
        for file in log_files(self._kept, self._name):
            with file.open("rb") as opened:
                opened.seek(max(0, file.stat().st_size - _MAX_BYTES))
                text = opened.read(_MAX_BYTES)
                self._read[file] = opened.tell()
            if end := b"".join(text.splitlines(keepends=True)[-lines:] if lines > 0 else []):
                self._say(file, end)

    def follow(self) -> None:
        """Until no job waits or runs."""
        while True:
            over = self._is_over()
            for file in log_files(self._kept, self._name):
                with file.open("rb") as opened:
                    opened.seek(self._read.get(file, 0))
                    text = opened.read(_MAX_BYTES)
                self._read[file] = self._read.get(file, 0) + len(text)
                if text:
                    self._say(file, text)
            if over:
                return
            time.sleep(_LOOK_S)

    def _is_over(self) -> bool:
        if self._kept.is_local:
            return is_over(self._kept.folder)
        if time.monotonic() - self._asked < _ASK_S and self._asked:
            return False
        self._asked = time.monotonic()
        try:
            found = live_jobs(self._kept)
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
        sys.stdout.write(scrub(text.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")))
        sys.stdout.flush()


class OnTerminal:
    """A run that keeps the launcher's terminal."""

    out = err = None

    def __enter__(self) -> "OnTerminal":
        return self

    def wait(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()

    def __exit__(self, *_: object) -> None:
        pass


class LocalLog:
    """The next files of a launch, in its folder; what is in them when the block ends has been shown."""

    def __init__(self, folder: Path) -> None:
        number = max(_local_logs(folder), default=0) + 1
        out = folder / "logs" / f"local-{number}.out"
        err = out.with_suffix(".err")
        self.out, self.err = _create(out), _create(err)
        with suppress(OSError):  # some file systems have no locks
            # The run inherits it, so it holds until the last of them has ended; who follows may hold it for a moment.
            fcntl.flock(self.out, fcntl.LOCK_EX)
        self._shown = [_LogTail(out, sys.stdout), _LogTail(err, sys.stderr)]

    def __enter__(self) -> "LocalLog":
        return self

    def wait(self, process: "subprocess.Popen[bytes]") -> None:
        while process.poll() is None:
            self.show()
            time.sleep(_SHOW_S)

    def show(self) -> None:
        """Say here what has come since the last time."""
        for one in self._shown:
            one.more()

    def __exit__(self, *_: object) -> None:
        os.close(self.out)
        os.close(self.err)
        for one in self._shown:
            one.close()


def latest_logs(folder: Path) -> list[Path]:
    """What the last launch here wrote, standard error after standard output; nothing where it wrote nothing."""
    found = _local_logs(folder)
    both = [found[max(found)], found[max(found)].with_suffix(".err")] if found else []
    return [file for file in both if file.is_file()]  # the second comes a moment after the first


def is_over(folder: Path) -> bool:
    """Whether nobody writes the latest any more: who does holds its lock."""
    for file in latest_logs(folder)[:1]:
        with file.open("rb") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # a file system without locks
                return True
    return True


class _LogTail:
    """How much of a growing file has been said here."""

    def __init__(self, file: Path, to: TextIO) -> None:
        self._file, self._to, self._is_heard = file.open("rb"), to, True
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> None:
        """Say what has come since."""
        while self._is_heard and (piece := self._file.read(_PIECE_BYTES)):
            try:
                self._to.write(self._decoder.decode(piece))
                self._to.flush()
            except OSError:  # nobody listens any more, as behind `| head`: the run is no worse for it
                self._is_heard = False

    def close(self) -> None:
        self.more()
        self._file.close()


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)


def _local_logs(folder: Path) -> dict[int, Path]:
    files = {file.stem.removeprefix("local-"): file for file in (folder / "logs").glob("local-*.out")}
    return {int(number): file for number, file in files.items() if number.isdecimal()}
