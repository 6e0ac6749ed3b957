"""Shows the output of a run on this machine: on a terminal, or in two files of its launch and here as they grow.

A terminal gets moving bars, which no file should hold. The run writes the files itself, so it continues, and continues
to write, even after the process that shows them is gone.
"""

import codecs
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

_LOOK_S = 0.1
_PIECE_BYTES = 1 << 20


class OnTerminal:
    """A run that keeps the launcher's terminal."""

    out = err = None

    def __enter__(self) -> "OnTerminal":
        return self

    def wait(self, process: "subprocess.Popen[bytes]") -> None:
        """Until it has ended."""
        process.wait()

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""


class LocalLog:
    """The next files of a launch; what is in them when the block ends has been shown.

    Args:
        folder: of the launch.
    """

    def __init__(self, folder: Path) -> None:
        number = max(_numbered(folder), default=0) + 1
        out = folder / "logs" / f"local-{number}.out"
        err = out.with_suffix(".err")
        self.out, self.err = _opened(out), _opened(err)
        _lock(self.out)
        self._shown = [_Shown(out, sys.stdout), _Shown(err, sys.stderr)]

    def __enter__(self) -> "LocalLog":
        return self

    def wait(self, process: "subprocess.Popen[bytes]") -> None:
        """Until it has ended, showing what it says."""
        while process.poll() is None:
            self.show()
            time.sleep(_LOOK_S)

    def show(self) -> None:
        """Say here what has come since the last time."""
        for one in self._shown:
            one.more()

    def __exit__(self, *_: object) -> None:
        os.close(self.out)
        os.close(self.err)
        for one in self._shown:
            one.close()


def begun(folder: Path) -> LocalLog | OnTerminal:
    """Where the runs of a launch speak: on the terminal, if one is here to look at."""
    return OnTerminal() if sys.stderr.isatty() else LocalLog(folder)


def latest(folder: Path) -> list[Path]:
    """What the last launch here wrote, standard error after standard output; nothing where it wrote nothing."""
    found = _numbered(folder)
    both = [found[max(found)], found[max(found)].with_suffix(".err")] if found else []
    return [file for file in both if file.is_file()]  # the second comes a moment after the first


def is_over(folder: Path) -> bool:
    """Whether nobody writes the latest any more: who does holds its lock."""
    for file in latest(folder)[:1]:
        with file.open("rb") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # a file system without locks
                return True
    return True


class _Shown:
    """How much of a file has been said here.

    Args:
        file: that grows.
        to: where it is said.
    """

    def __init__(self, file: Path, to: TextIO) -> None:
        self._file, self._to, self._is_heard = file.open("rb"), to, True
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> None:
        """What has come since."""
        while self._is_heard and (piece := self._file.read(_PIECE_BYTES)):
            self._say(self._decoder.decode(piece))

    def close(self) -> None:
        """All that there is has been said."""
        self.more()
        self._file.close()

    def _say(self, text: str) -> None:
        try:
            self._to.write(text)
            self._to.flush()
        except OSError:  # nobody listens any more, as behind `| head`: the run is no worse for it
            self._is_heard = False


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)


def _lock(descriptor: int) -> None:
    """The run inherits it, so it holds until the last of them has ended."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # who follows may hold it for the moment of a look
    except OSError:  # some file systems have no locks
        return


def _numbered(folder: Path) -> dict[int, Path]:
    files = {file.stem.removeprefix("local-"): file for file in (folder / "logs").glob("local-*.out")}
    return {int(number): file for number, file in files.items() if number.isdecimal()}
