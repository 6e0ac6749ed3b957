# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Messages and progress in; lines and bars on the terminal out (standard error), once and on rank 0 only.

Rich is imported at the first message, so that what only computes needs torch alone.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, TypeVar

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


@cache
def logger() -> logging.Logger:
    """The package's logger, writing through the console so that bars and lines do not collide."""
    from rich.logging import RichHandler

    log = logging.getLogger("nemo_vfm")
    if not log.handlers:
        handler = RichHandler(console=console(), show_path=False, markup=False, log_time_format="[%X]")
        handler.addFilter(_clean)  # before the terminal's width cuts a secret in two
        log.addHandler(handler)
        log.setLevel(os.environ.get("NEMO_VFM_LOG_LEVEL", "INFO").upper())
        log.propagate = False
    return log


def _clean(record: logging.LogRecord) -> bool:
    """Take secrets and what steers a terminal out of a record, its traceback included; every record goes on."""
    record.msg, record.args = plain(record.getMessage()), None
    if record.exc_info:
        record.exc_text = plain(logging.Formatter().formatException(record.exc_info))
    return True


def plain(text: str) -> str:
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
    return plain(text).replace("\n", "?").replace("\t", " ")


class Bar:
    """One line of progress: what is happening, how far, how long it will take."""

    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress, self._task = progress, task

    def advance(self, count: float = 1, note: str | None = None) -> None:
        """Move on by `count`; `note` replaces the text at the end of the line."""
        if note is None:
            self._progress.update(self._task, advance=count)
        else:
            self._progress.update(self._task, advance=count, note=_line(note))


@contextmanager
def bar(title: str, total: int | None, completed: int = 0) -> Iterator[Bar]:
    """Show a progress bar for `total` units of work while the block runs."""
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
        yield Bar(progress, progress.add_task(_line(title), total=total, completed=completed, note=""))


def track(title: str, items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Yield `items` under a progress bar."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with bar(title, total) as line:
        for item in items:
            yield item
            line.advance()
