"""Writes messages and progress to standard error, on rank 0 only: bars on a terminal, plain lines elsewhere.

Rich is imported at the first message, so that code that only computes needs torch alone.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.progress import ProgressLines, every_s, stamp_lines, ticking, write_stamped
from nemo_vfm.core.secret import conceal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

T = TypeVar("T")


@cache
def console() -> "Console":
    """The one console: standard error, so that standard output stays free for results."""
    from rich.console import Console

    return Console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")


def speak() -> None:
    """Let a rank other than 0 say what it has to say, once its standard error is a file of its own."""
    console().quiet = False


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@cache
def logger() -> logging.Logger:
    """The package's logger, writing through the console so that bars and lines do not collide."""
    log = logging.getLogger("nemo_vfm")
    if not log.handlers:
        text = os.environ.get("NEMO_VFM_LOG_LEVEL", "INFO")
        if text.upper() not in _LEVELS:
            raise UserError(f"NEMO_VFM_LOG_LEVEL is {text[:40]!r}, expected one of {', '.join(_LEVELS)}")
        log.setLevel(text.upper())
        log.addHandler(_LogHandler())
        log.propagate = False
    return log


class _LogHandler(logging.Handler):
    """Writes records below each other, all but those of information with their level."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it without secrets and what steers a terminal, unless this rank has to be silent."""
        record.msg, record.args = scrub(record.getMessage()), None  # before a line's end cuts a secret in two
        if record.exc_info:
            record.exc_text = scrub(logging.Formatter().formatException(record.exc_info))
        if console().quiet:
            return
        level = "" if record.levelno == logging.INFO else f"{record.levelname}: "
        text = "\n".join(filter(None, [level + record.getMessage(), record.exc_text]))
        try:
            if console().is_terminal:
                from rich.text import Text

                # Above a bar that moves; a word longer than a line is left to the terminal, which copies it whole.
                lines = stamp_lines(text, console().width)
                shown, stamp = Text(lines), lines.index(" ")
                shown.stylize("dim", 0, stamp)
                if level:
                    style = "bold red" if record.levelno > logging.WARNING else "yellow"
                    shown.stylize(style, stamp, lines.index(":", stamp))
                console().print(shown, soft_wrap=True)
            else:
                write_stamped(sys.stderr, text)
        except (OSError, ValueError):  # a log that is full or closed must not end a training
            self.handleError(record)


def scrub(text: str) -> str:
    """A text without secrets, and without what moves a cursor or hides a line: names of files are anybody's."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in conceal(text))


def info(text: str) -> None:
    """Say something."""
    logger().info(text)


def warn(text: str) -> None:
    """Say that something is other than asked for."""
    logger().warning(text)


@cache
def warn_once(text: str) -> None:
    """Say it the first time only: for what would repeat at every file or step."""
    warn(text)


def _line(text: str) -> str:
    return scrub(text).replace("\n", "?").replace("\t", " ")


class Bar(Protocol):
    """One line of progress: what is happening, how far, how long it will take."""

    def advance(self, count: float = 1, note: str | None = None) -> None:
        """Move on by `count`; `note` replaces the text at the end of the line."""
        ...


class _RichBar:
    """A bar that moves: a task's line of Rich's progress, which has the terminal."""

    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress, self._task = progress, task

    def advance(self, count: float = 1, note: str | None = None) -> None:
        if note is None:
            self._progress.update(self._task, advance=count)
        else:
            self._progress.update(self._task, advance=count, note=_line(note))


@contextmanager
def bar(title: str, total: int | None, completed: int = 0, unit: str = "") -> Iterator[Bar]:
    """Show progress over `total` units of work while the block runs.

    Args:
        title: what happens.
        total: None if unknown.
        completed: what was done before.
        unit: of `total`, such as steps.
    """
    if not console().is_terminal:  # a log, in which only rank 0 says how far all are
        stream, is_first = sys.stderr, os.environ.get("RANK", "0") == "0"
        seconds = every_s(os.environ.get("NEMO_VFM_PROGRESS_S"))
        lines = ProgressLines(_line(title), total, completed, unit=unit, every_s=seconds,
                              write=lambda line: write_stamped(stream, _line(line)) if is_first else None)  # fmt: skip
        try:
            with ticking(lines) if is_first and seconds > 0 else nullcontext():
                yield lines
        finally:
            lines.close()
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<22}", markup=False), BarColumn(bar_width=28), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=console()) as progress:
        yield _RichBar(progress, progress.add_task(_line(title), total=total, completed=completed, note=""))


def track(title: str, items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Yield `items` under a progress bar."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with bar(title, total) as line:
        for item in items:
            yield item
            line.advance()
