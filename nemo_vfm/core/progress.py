"""Keeps this process's progress, for the heartbeat in `status.json`, and writes it as plain lines without a terminal.

The job reports its progress here. Bars of logs write a line every ten seconds, and one at the end.
"""

import math
import os
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from nemo_vfm.core.errors import UserError

EVERY_S = 10.0
LOG_WIDTH = 80
_LONGEST_WAIT_S = 3600.0  # a lock cannot wait for ever
_RECENT = 20  # steps whose mean time tells how long the rest will take
_VALUES: dict[str, Any] = {}
_ENDS: deque[float] = deque(maxlen=_RECENT + 1)
_WAIT_REASON: list[str] = []
_SOURCES: list[Callable[[], Mapping[str, Any]]] = []


def step(number: int, total: int | None) -> None:
    """An optimizer step is done; `total` is None where only the clock knows the end."""
    _ENDS.append(time.monotonic())
    _VALUES.update(step=number, total_steps=total)


def frames(doing: str, number: int, total: int) -> None:
    """So many frames of a curation's step are done."""
    _VALUES.update(doing=doing, frames=number, total_frames=total)


def checkpoint(seconds: float) -> None:
    """One was written, in so many seconds from its copy in memory to its last byte; the slowest is kept."""
    before = _VALUES.get("checkpoint_s", 0.0)
    assert isinstance(before, float)
    _VALUES["checkpoint_s"] = max(before, round(seconds, 3))


def set_wait_reason(why: str) -> None:
    """Something that the job waits for does not come, and why; empty where it has come."""
    _WAIT_REASON[:] = [why] if why else []


def wait_reason() -> str:
    """The reason for waiting, if known; else empty."""
    return next(iter(_WAIT_REASON), "")


def forget() -> None:
    """Another job begins."""
    _VALUES.clear()
    _ENDS.clear()
    _WAIT_REASON.clear()


def ask(source: Callable[[], Mapping[str, Any]] | None) -> None:
    """Make this the only one that is asked for more at the moment of a heartbeat; None asks nobody."""
    _SOURCES[:] = [] if source is None else [source]


def current() -> dict[str, Any]:
    """What is known.

    Returns:
        `step`, `total_steps`, `step_s` (mean seconds of the last steps), `checkpoint_s` (of the slowest), of a curation
        `doing`, `frames` and `total_frames`, and what those who are asked say; what is not known is left out.
    """
    found, ends = dict(_VALUES), tuple(_ENDS)  # the heartbeat asks from a thread of its own
    if len(ends) > 1:
        found["step_s"] = round((ends[-1] - ends[0]) / (len(ends) - 1), 6)
    for source in _SOURCES:
        found.update(source())
    return found


class ProgressLines:
    """A bar for logs, which would keep each movement of one that moves.

    Args:
        title: what happens.
        total: how much there is to do, None if unknown.
        completed: how much of it was done before.
        unit: of `total`, such as steps; empty where the title says it.
        write: takes a line, without its end.
        every_s: seconds between two lines; 0 writes one for each `advance`.
        clock: seconds since any moment.
    """

    def __init__(
        self, title: str, total: int | None, completed: float = 0, *, unit: str = "", write: Callable[[str], None],
        every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._title, self._total, self._done, self._unit = title, total, completed, unit
        self._write, self._every_s, self._clock = write, every_s, clock
        self._note, self._dirty, self._lock = "", True, threading.Lock()
        self._said_s = self._moved_s = clock()  # when the last line was written, and when something was last done
        self._since, self._before = self._moved_s, completed  # what the speed is measured from

    def advance(self, count: float = 1, note: str | None = None) -> None:
        """Move on by `count`; `note` replaces the text at the end of the line."""
        with self._lock:
            self._done, self._dirty, self._moved_s = self._done + count, True, self._clock()
            self._note = self._note if note is None else note
            if self._moved_s - self._said_s >= self._every_s:
                self._say(self._pace())

    def tick(self) -> float:
        """Say a line if it is time for one, whatever was done since the last; the seconds until it may be time."""
        with self._lock:
            now = self._clock()
            if now - self._said_s >= self._every_s:
                moved = self._moved_s > self._said_s
                still = f"no change for {duration(now - self._moved_s)}"
                self._say(self._pace() if moved else [": ".join(filter(None, [still, wait_reason()]))])
            return self._said_s + self._every_s - now

    def close(self) -> None:
        """Say where it ended, unless the last line did."""
        with self._lock:
            if self._dirty:
                self._say(self._pace())

    def _say(self, pace: list[str]) -> None:
        of = "" if self._total is None else f"/{self._total:,}"
        amount = f"{self._title}: {self._done:,.0f}{of} {self._unit}".rstrip()
        self._write(", ".join(filter(None, [amount, self._note, *pace])))
        self._said_s, self._dirty = self._clock(), False
        self._since, self._before = self._moved_s, self._done

    def _pace(self) -> list[str]:
        """How quick, and how long it will take, from what was done since the last line."""
        seconds = self._moved_s - self._since
        speed = (self._done - self._before) / seconds if seconds > 0 else 0.0
        if speed <= 0 or self._unit == "s":  # seconds pass by themselves
            return [] if self._unit != "s" or self._total is None else [f"{duration(self._total - self._done)} left"]
        left = [] if self._total is None else [f"{duration((self._total - self._done) / speed)} left"]
        unit = self._unit or "items"
        return [f"{speed:.2f} {unit}/s" if speed >= 0.1 else f"{1 / speed:.1f} s each", *left]


@contextmanager
def ticking(lines: ProgressLines) -> Iterator[None]:
    """Let a thread say the lines that are due while the block is busy."""
    ended = threading.Event()

    def tick() -> None:
        with suppress(OSError, ValueError):  # a log that is full or closed
            while not ended.wait(min(lines.tick(), _LONGEST_WAIT_S)):
                pass

    thread = threading.Thread(target=tick, name="progress lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def duration(seconds: float) -> str:
    """Such as 2 h 05 min, 3 min 20 s, 9 s."""
    whole = max(0, math.ceil(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


def every_s(text: str | None) -> float:
    """What NEMO_VFM_PROGRESS_S says, in seconds.

    Raises:
        UserError: it is no number of seconds from 0 on.
    """
    if text is None:
        return EVERY_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise UserError(
            f"NEMO_VFM_PROGRESS_S must be the number of seconds between progress lines, such as 10, not {text!r}"
        )
    return seconds


def write_stamped(stream: TextIO, text: str) -> None:
    """Write a text as lines of `stamp_lines`, at once.

    NEMO_VFM_LOG_WIDTH says where they are wrapped, in columns; 0 wraps nothing, for logs that programs read.
    """
    width = os.environ.get("NEMO_VFM_LOG_WIDTH", "")
    stream.write(f"{stamp_lines(text, int(width) if width.isdecimal() else LOG_WIDTH)}\n")
    stream.flush()


def stamp_lines(text: str, width: int) -> str:
    """A text behind the time of day; its lines stand below each other, so that none can pass for a line of its own.

    Lines are wrapped at so many columns (0: nowhere), between words only: names of files can be searched and copied.
    """
    stamp, lines = time.strftime("[%H:%M:%S] "), list[str]()
    for line in text.split("\n"):
        if len(line) <= (room := width - len(stamp)) or room <= 0:
            lines.append(line)
        else:
            lines += textwrap.wrap(line, room, replace_whitespace=False, break_long_words=False, break_on_hyphens=False)
    return stamp + f"\n{' ' * len(stamp)}".join(lines)
