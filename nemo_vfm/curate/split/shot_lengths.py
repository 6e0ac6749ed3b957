"""Cuts frames into spans of bounded length at the cuts of a finder, each given as soon as it is certain."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.types.media_types import Frame, Span
from nemo_vfm.curate.split.finder import Finder
from nemo_vfm.curate.split.glance import Eye, Glance
from nemo_vfm.curate.split.trim import REACH_S, Trim

MOST_TRIM_S = 10.0
ShortTail = Literal["merge", "leave"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long spans are, in frames.

    Args:
        min_frames: two cuts are never nearer.
        longest: longer shots are cut into pieces of this length.
        tail: a last piece shorter than this joins the one before it, which is then longer than `longest`.
        margin: frames cut off on each side of a cut, besides the whole of a transition; None leaves every frame.
        reach: frames on each side of its middle that a transition may have; 0 where the finder gives hard cuts alone.
    """

    min_frames: int
    longest: int
    tail: int
    margin: int | None = None
    reach: int = 0

    @classmethod
    def of(
        cls,
        fps: float,
        *,
        min_length_s: float,
        max_length_s: float,
        short_tail: ShortTail,
        min_tail_s: float,
        trim_s: float | None = None,
        gradual: bool = False,
    ) -> "Lengths":
        """From seconds; the longest is rounded down, so that no piece is longer than was asked for."""
        tail = round(min_tail_s * fps) if short_tail == "merge" else 0
        margin = None if trim_s is None else round(trim_s * fps)
        reach = round(REACH_S * fps) if gradual and trim_s is not None else 0
        longest = max(1, math.floor(max_length_s * fps + 1e-6))
        return cls(max(1, round(min_length_s * fps)), longest, tail, margin, reach)


def check_lengths(*, min_length_s: float, max_length_s: float, min_tail_s: float, trim_s: float | None = None) -> None:
    """ValueError where they contradict each other."""
    require_between(0, MOST_TRIM_S, trim_s=trim_s)
    if not 0 <= min_length_s < max_length_s or not 0 <= min_tail_s < max_length_s:
        raise ValueError(
            f"min_length_s {min_length_s} and min_tail_s {min_tail_s} must be below max_length_s {max_length_s}"
        )


class Pieces:
    """Gaps between shots in, spans out. The gap of a hard cut at frame 9 that is not trimmed is (9, 9).

    Args:
        lengths: of the spans.
    """

    def __init__(self, lengths: Lengths) -> None:
        self._longest, self._tail, self._start = lengths.longest, max(lengths.tail, 1), 0

    def add(self, gaps: Iterable[Span], certain: int) -> Iterator[Span]:
        """The spans that end at these gaps, and those that no gap before the frame `certain` can change."""
        for start, stop in gaps:
            if start > self._start:
                yield from self._until(start)
            self._start = max(self._start, stop)
        yield from self._pieces(certain)

    def end(self, count: int) -> Iterator[Span]:
        """The rest of a film of `count` frames."""
        if count > self._start:
            yield from self._until(count)

    def _until(self, stop: int) -> Iterator[Span]:
        yield from self._pieces(stop)
        yield self._start, stop
        self._start = stop

    def _pieces(self, known: int) -> Iterator[Span]:
        """The first pieces of a shot that goes on at least until `known`; the last is kept for its tail."""
        while known >= self._start + self._longest + self._tail:
            yield self._start, self._start + self._longest
            self._start += self._longest


def cut(frames: Iterable[Frame], finder: Finder, lengths: Lengths) -> Iterator[Span]:
    """Spans between the finder's cuts, in pieces where they are too long."""
    yield from cut_glances(map(Eye().look, frames), finder, lengths)


def cut_glances(glances: Iterable[Glance], finder: Finder, lengths: Lengths) -> Iterator[Span]:
    """The same of frames that were glanced at."""
    pieces, count, trim = Pieces(lengths), 0, Trim(finder, lengths.margin, lengths.reach)
    for glance in glances:
        gaps = trim.see(glance)
        count += 1
        yield from pieces.add(gaps, trim.certain())
    yield from pieces.add(trim.end(), 0)
    yield from pieces.end(count)
