"""Cuts frames into spans of bounded length at the cuts of a finder, each yielded as soon as it is certain.

The frames around each cut that belong to neither shot, that is all of a dissolve, a fade or a wipe, are trimmed.
Thumbnails show how far each frame is on the way from one shot to the middle of a transition. Where a tenth of the way
remains, half as many frames again may still change: a diagonal wipe begins in a corner.

A video is split part by part between its holes, and several workers may split one long video. Each sends its glances,
and one splits by all glances in order. A worker that begins in the middle guesses where shots end, which is right
unless the video's start matters, and scores these shots. The final spans follow from all glances from the first on, so
they do not depend on the division of work.
"""

import base64
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal, TypeVar

import numpy as np

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.types.media_types import Frame, Span
from nemo_vfm.curate.split.finder import Eye, Finder, Glance, Gradual

REACH_S = 1.5  # nothing farther from the middle of a transition is trimmed
_DARK = 24.0  # mean, 0 to 255: hues jump in the dark, so that a fade may look like a hard cut
_EDGE = 0.1  # of the way: a frame that is less far along is at one end of it
_SAME = 2.0  # mean difference, 0 to 255, below which one side of a cut does not change
MAX_TRIM_S = 10.0
ShortTail = Literal["merge", "leave"]
_CELLS = 16 * 9 * 3
_T = TypeVar("_T")
_ROW = np.dtype([("content", "<f8"), ("brightness", "<f8"), ("thumbnail", "u1", (_CELLS,))])


class Trim:
    """Turns cuts into gaps: from the first frame that belongs to neither shot to the first of the next shot.

    A hard cut at frame 9 without a margin is the gap (9, 9).

    Args:
        finder: yields cuts; a `Gradual` one is the middle of a transition.
        margin: additional frames trimmed on each side; None trims nothing.
        reach: the frames on each side of a gradual cut that may belong to it; 0 where the finder gives none.
    """

    def __init__(self, finder: Finder, margin: int | None, reach: int) -> None:
        self._finder, self._margin, self._reach = finder, margin or 0, 0 if margin is None else reach
        self._behind = self._margin + self._reach
        self._glances: deque[Glance] = deque()
        self._first = self._count = 0  # the number of the first stored frame; frames seen
        self._waiting: list[int] = []
        self._before = 0  # the previous cut
        self.certain = 0  #: no gap will begin before this frame any more

    def see(self, glance: Glance) -> list[Span]:
        """The gaps that have become certain with this frame."""
        self._count += 1
        self._waiting += self._finder.see(glance)
        if self._reach:
            self._glances.append(glance)
        until = self._finder.certain() - self._behind
        gaps = self._decide(until) if self._waiting else []
        self.certain = max(0, min(until, self._waiting[0] - self._behind) if self._waiting else until)
        while self._glances and self._first < self.certain:
            self._glances.popleft()
            self._first += 1
        return gaps

    def end(self) -> list[Span]:
        """The gaps that are left when no frame comes any more."""
        self._waiting += [cut for cut in self._finder.end() if cut < self._count]
        return self._decide(self._count)

    def _decide(self, until: int) -> list[Span]:
        gaps = []
        while self._waiting and self._waiting[0] <= until:
            cut = self._waiting.pop(0)
            next_cut = self._waiting[0] if self._waiting else self._count
            middle = min((cut - 1, cut), key=self._light) if self._reach else cut
            is_dark = bool(self._reach) and self._light(middle) < _DARK
            start = stop = cut
            if is_dark or (self._reach and isinstance(cut, Gradual)):
                middle = middle if is_dark else cut
                before = range(middle, max(self._before, cut - self._reach, self._first) - 1, -1)
                after = range(middle, min(next_cut - 1, cut + self._reach, self._count - 1) + 1)
                sides = self._half(before), self._half(after)
                if any(sides):
                    start, stop = min(cut, middle - sides[0]), max(cut, middle + sides[1])
            gaps.append((max(start - self._margin, 1), min(stop + self._margin, self._count - 1)))
            self._before = cut
        return gaps

    def _light(self, number: int) -> float:
        return float(self._glances[number - self._first].thumbnail_D.mean())

    def _half(self, numbers: range) -> int:
        """How many of these frames, counted from the cut, belong to the transition."""
        if len(numbers) < 2:
            return 0
        pictures = [self._glances[number - self._first].thumbnail_D for number in numbers]
        if self._light(numbers[0]) < _DARK:  # in a fade only brightness counts, whatever moves
            pictures = [picture_D.mean(keepdims=True) for picture_D in pictures]
        far_D, way_D = pictures[-1], pictures[0] - pictures[-1]
        if float(np.abs(way_D).mean()) < _SAME:
            return 0
        shares = [float((picture_D - far_D) @ way_D) / float(way_D @ way_D) for picture_D in pictures]
        if shares[1] < _EDGE:
            return 0
        half, tenth = (next(place for place, share in enumerate(shares) if share < least) for least in (0.5, _EDGE))
        return min(max(2 * half, tenth + tenth // 2) + 4, len(numbers) - 1)


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long spans are, in frames."""

    min_frames: int  #: minimum distance of two cuts
    longest: int  #: longer shots are cut into pieces of this length
    tail: int  #: a last piece shorter than this joins the one before it, which is then longer than `longest`
    #: frames trimmed on each side of a cut, in addition to a whole transition; None trims nothing
    margin: int | None = None
    #: most frames of a transition on each side of its middle; 0 if the finder yields only hard cuts
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
        """From seconds; the longest is rounded down, so that no piece is longer than requested."""
        tail = round(min_tail_s * fps) if short_tail == "merge" else 0
        margin = None if trim_s is None else round(trim_s * fps)
        reach = round(REACH_S * fps) if gradual and trim_s is not None else 0
        longest = max(1, math.floor(max_length_s * fps + 1e-6))
        return cls(max(1, round(min_length_s * fps)), longest, tail, margin, reach)


def check_lengths(*, min_length_s: float, max_length_s: float, min_tail_s: float, trim_s: float | None = None) -> None:
    """ValueError if they contradict each other."""
    require_between(0, MAX_TRIM_S, trim_s=trim_s)
    if not 0 <= min_length_s < max_length_s or not 0 <= min_tail_s < max_length_s:
        raise ValueError(
            f"min_length_s {min_length_s} and min_tail_s {min_tail_s} must be below max_length_s {max_length_s}"
        )


@dataclass(slots=True)
class SpanBuilder:
    """Turns gaps between shots into spans. The gap of a hard cut at frame 9 that is not trimmed is (9, 9)."""

    lengths: Lengths
    _start: int = 0

    def add(self, gaps: Iterable[Span], certain: int) -> Iterator[Span]:
        """The spans that end at these gaps, and those that no gap before the frame `certain` can change."""
        for start, stop in gaps:
            if start > self._start:
                yield from self._pieces(start)
                yield self._start, start
            self._start = max(self._start, start, stop)
        yield from self._pieces(certain)

    def end(self, count: int) -> Iterator[Span]:
        """The rest of a video of `count` frames."""
        yield from self.add([(count, count)], 0)

    def _pieces(self, known: int) -> Iterator[Span]:
        """The first pieces of a shot that lasts at least until `known`; the last piece is held back for its tail."""
        longest = self.lengths.longest
        while known >= self._start + longest + max(self.lengths.tail, 1):
            yield self._start, self._start + longest
            self._start += longest


def cut_glances(glances: Iterable[Glance], finder: Finder, lengths: Lengths) -> Iterator[Span]:
    """Spans between the finder's cuts, in pieces where they are too long."""
    pieces, count, trim = SpanBuilder(lengths), 0, Trim(finder, lengths.margin, lengths.reach)
    for glance in glances:
        gaps = trim.see(glance)
        count += 1
        yield from pieces.add(gaps, trim.certain)
    yield from pieces.add(trim.end(), 0)
    yield from pieces.end(count)


class SplitsByGlances(ABC):
    """A splitter that needs only glances, in order."""

    min_length_s: float
    max_length_s: float
    short_tail: ShortTail
    min_tail_s: float
    trim_s: float | None

    @abstractmethod
    def plan(self, fps: float) -> tuple[Finder, Lengths]:
        """A new finder of cuts, and how long spans are."""

    def spans(self, frames: Iterable[Frame], *, fps: float) -> Iterator[Span]:
        """See `Splitter.spans`; as many frames behind as the finder takes to be certain."""
        yield from cut_glances(map(Eye().look, frames), *self.plan(fps))

    def lengths(self, fps: float, *, gradual: bool) -> Lengths:
        """How long spans are at this rate.

        Args:
            gradual: whether the finder gives cuts that are `Gradual`.
        """
        return Lengths.of(
            fps, min_length_s=self.min_length_s, max_length_s=self.max_length_s, short_tail=self.short_tail,
            min_tail_s=self.min_tail_s, trim_s=self.trim_s, gradual=gradual,
        )  # fmt: skip


def pack_glances(glances: Sequence[Glance]) -> str:
    """The numbers of some glances that finders use, as text."""
    rows = np.zeros(len(glances), _ROW)
    for row, glance in zip(rows, glances, strict=True):
        row["content"], row["brightness"] = glance.content, glance.brightness
        row["thumbnail"] = glance.thumbnail_D
    return base64.b85encode(rows.tobytes()).decode()


def in_parts(
    items: Iterable[_T], holes: Sequence[int], cut: Callable[[Iterator[_T]], Iterable[Span]]
) -> Iterator[Span]:
    """The spans of frames, or of glances, cut separately between these numbers: no shot spans a hole."""
    rest = iter(items)
    for first, stop in zip((0, *holes), (*holes, None), strict=True):
        head = list(islice(rest, 1))
        if not head:
            return  # the video is damaged before this part
        part = chain(head, islice(rest, None if stop is None else stop - first - 1))
        yield from ((first + start, first + end) for start, end in cut(part))
        if stop is not None:
            deque(part, maxlen=0)  # skip frames that the splitter did not read


def spans_of(texts: Iterable[str], splitter: SplitsByGlances, fps: float, holes: Sequence[int]) -> list[Span]:
    """The spans of a video whose glances were packed in pieces."""

    def glances() -> Iterator[Glance]:
        for text in texts:
            for content, brightness, thumbnail_D in np.frombuffer(base64.b85decode(text), _ROW):
                glance = Glance(float(content), np.empty((0, 0, 3), np.uint8))  # its pixels stay where they were seen
                glance.brightness, glance.thumbnail_D = float(brightness), thumbnail_D.astype(np.float32)
                yield glance

    return list(in_parts(glances(), holes, lambda part: cut_glances(part, *splitter.plan(fps))))
