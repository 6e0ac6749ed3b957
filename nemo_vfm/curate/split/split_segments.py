"""Splits a video part by part between its holes, and lets several workers split one long video.

Each worker sends its glances, and one splits by all glances in order. A worker that begins in the middle guesses where
shots end, which is right unless the video's start matters, and scores these. The spans that count are those of all
glances from the first on, so they do not depend on the division of work.
"""

import base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from nemo_vfm.core.types.media_types import Span
from nemo_vfm.curate.split.finder import Finder
from nemo_vfm.curate.split.glance import Glance
from nemo_vfm.curate.split.shot_lengths import Lengths, cut_glances

_CELLS = 16 * 9 * 3
_T = TypeVar("_T")
_ROW = np.dtype([("content", "<f8"), ("brightness", "<f8"), ("thumbnail", "u1", (_CELLS,))])


@runtime_checkable
class SplitsByGlances(Protocol):
    """A splitter that needs nothing but glances, in order."""

    def plan(self, fps: float) -> tuple[Finder, Lengths]:
        """A new finder of cuts, and how long spans are."""
        ...


class _Kept(Glance):
    """A glance that was sent from another process: without the pixels that it was made of."""

    __slots__ = ("_brightness",)

    def __init__(self, content: float, brightness: float, thumbnail_D: np.ndarray) -> None:
        super().__init__(content, np.empty((0, 0, 3), np.uint8))
        self._brightness, self._thumbnail_D = brightness, thumbnail_D.astype(np.float32)

    @property
    def brightness(self) -> float:
        """See `Glance`."""
        return self._brightness


def packed(glances: Sequence[Glance]) -> str:
    """What finders read of some glances, as text."""
    rows = np.zeros(len(glances), _ROW)
    for row, glance in zip(rows, glances, strict=True):
        row["content"], row["brightness"] = glance.content, glance.brightness
        row["thumbnail"] = glance.thumbnail_D
    return base64.b85encode(rows.tobytes()).decode()


def in_parts(
    items: Iterable[_T], holes: Sequence[int], cut: Callable[[Iterator[_T]], Iterable[Span]]
) -> Iterator[Span]:
    """The spans of frames, or of glances, that are cut anew from each of these numbers on: no shot spans a hole."""
    rest = iter(items)
    for first, stop in zip((0, *holes), (*holes, None), strict=True):
        head = list(islice(rest, 1))
        if not head:
            return  # damaged before this part
        part = chain(head, islice(rest, None if stop is None else stop - first - 1))
        yield from ((first + start, first + end) for start, end in cut(part))
        if stop is not None:
            deque(part, maxlen=0)  # frames that the splitter did not ask for


def spans_of(texts: Iterable[str], splitter: SplitsByGlances, fps: float, holes: Sequence[int]) -> list[Span]:
    """The spans of a film whose glances were packed piece by piece."""
    return list(in_parts(_unpacked(texts), holes, lambda part: cut_glances(part, *splitter.plan(fps))))


def _unpacked(texts: Iterable[str]) -> Iterator[Glance]:
    for text in texts:
        for content, brightness, thumbnail_D in np.frombuffer(base64.b85decode(text), _ROW):
            yield _Kept(float(content), float(brightness), thumbnail_D)
