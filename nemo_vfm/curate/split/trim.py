"""Finds the frames around each cut that belong to neither shot: the whole of a dissolve, a fade or a wipe.

Between one shot's picture and the middle of a transition, thumbnails tell how far each frame has come. Where a tenth of
the way is left, half as many frames again may still change: a diagonal wipe begins in a corner.
"""

from collections import deque

import numpy as np

from nemo_vfm.core.types.media_types import Span
from nemo_vfm.curate.split.finder import Finder, Gradual
from nemo_vfm.curate.split.glance import Glance

REACH_S = 1.5  # nothing farther from the middle of a transition is trimmed
_DARK = 24.0  # mean, 0 to 255: hues jump in the dark, so that a fade may pass for a hard cut
_EDGE = 0.1  # of the way: a frame that has come no further is at one end of it
_SAME = 2.0  # mean difference, 0 to 255, below which one side of a cut does not change


class Trim:
    """Turns cuts into gaps: from the first frame that belongs to neither shot to the first of the next shot.

    A hard cut at frame 9 without a margin is the gap (9, 9).

    Args:
        finder: gives cuts; those that are `Gradual` are the middles of transitions.
        margin: frames cut off on each side besides; None leaves every frame.
        reach: the frames on each side of a gradual cut that may belong to it; 0 where the finder gives none.
    """

    def __init__(self, finder: Finder, margin: int | None, reach: int) -> None:
        self._finder, self._margin, self._reach = finder, margin or 0, 0 if margin is None else reach
        self._behind = self._margin + self._reach
        self._glances: deque[Glance] = deque()
        self._first = self._count = 0  # the number of the first remembered frame; frames seen
        self._waiting: list[int] = []
        self._before = 0  # the cut before
        self._certain = 0

    def see(self, glance: Glance) -> list[Span]:
        """The gaps that have become certain with this frame."""
        self._count += 1
        self._waiting += self._finder.see(glance)
        if self._reach:
            self._glances.append(glance)
        until = self._finder.certain() - self._behind
        gaps = self._decide(until) if self._waiting else []
        self._certain = max(0, min(until, self._waiting[0] - self._behind) if self._waiting else until)
        while self._glances and self._first < self._certain:
            self._glances.popleft()
            self._first += 1
        return gaps

    def end(self) -> list[Span]:
        """The gaps that are left when no frame comes any more."""
        self._waiting += [cut for cut in self._finder.end() if cut < self._count]
        return self._decide(self._count)

    def certain(self) -> int:
        """No gap will begin before this frame any more."""
        return self._certain

    def _decide(self, until: int) -> list[Span]:
        gaps = []
        while self._waiting and self._waiting[0] <= until:
            cut = self._waiting.pop(0)
            next_cut = self._waiting[0] if self._waiting else self._count
            start, stop = self._extent(cut, next_cut) if self._reach else (cut, cut)
            gaps.append((max(start - self._margin, 1), min(stop + self._margin, self._count - 1)))
            self._before = cut
        return gaps

    def _extent(self, cut: int, next_cut: int) -> Span:
        middle = min((cut - 1, cut), key=self._light)
        if self._light(middle) >= _DARK:
            if not isinstance(cut, Gradual):
                return cut, cut
            middle = cut
        before = range(middle, max(self._before, cut - self._reach, self._first) - 1, -1)
        after = range(middle, min(next_cut - 1, cut + self._reach, self._count - 1) + 1)
        sides = self._half(before), self._half(after)
        return (min(cut, middle - sides[0]), max(cut, middle + sides[1])) if any(sides) else (cut, cut)

    def _light(self, number: int) -> float:
        return float(self._glances[number - self._first].thumbnail_D.mean())

    def _half(self, numbers: range) -> int:
        """How many of these frames, the cut's first, are on their way to it."""
        if len(numbers) < 2:
            return 0
        pictures = [self._glances[number - self._first].thumbnail_D for number in numbers]
        if self._light(numbers[0]) < _DARK:  # of a fade the light tells all, whatever moves
            pictures = [picture_D.mean(keepdims=True) for picture_D in pictures]
        far_D, way_D = pictures[-1], pictures[0] - pictures[-1]
        if float(np.abs(way_D).mean()) < _SAME:
            return 0
        shares = [float((picture_D - far_D) @ way_D) / float(way_D @ way_D) for picture_D in pictures]
        if shares[1] < _EDGE:
            return 0
        half, tenth = (next(place for place, share in enumerate(shares) if share < least) for least in (0.5, _EDGE))
        return min(max(2 * half, tenth + tenth // 2) + 4, len(numbers) - 1)
