"""Keeps this process's progress, as the job reports it, for the heartbeat in `status.json`."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

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
