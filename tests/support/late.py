"""Defines classes of fields whose annotations stay text until they are evaluated."""

from __future__ import annotations

from typing import NamedTuple, NotRequired, Required, TypedDict


class Point(NamedTuple):
    low: float
    high: int = 0


class Limits(TypedDict):
    """A mapping of which a part may be missing."""

    low: float
    high: NotRequired[int]


class Total(TypedDict, total=False):
    """The same, written the other way round."""

    low: Required[float]
    high: int
