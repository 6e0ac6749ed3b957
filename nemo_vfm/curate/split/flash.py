"""Filters another finder's cuts: where the picture comes back afterwards, it was a flash and no cut."""

from collections import deque
from itertools import pairwise

import cv2

from nemo_vfm.curate.split.finder import Finder, Glance

_BEFORE = 3  # a flash may take a frame or two to light up, so the picture before it is sought this far back
# A picture has come back when its distance to before is at most this part of the jump, and that of the layouts of
# colours, 0 to 2, is at most this: another shot may be as light as the one before. Without the latter 7 of 180 cuts
# were lost, those with a flash on them (30 generated films, 2026-11).
_LIKENESS, _LAYOUT = 0.35, 0.8
_STEADY = 0.1  # of a flash: where it is over, the light changes no more than this from frame to frame


class WithoutFlashes(Finder):
    """Waits whether the picture of before a cut comes back soon; then it was a flash, and both its edges go.

    Where the camera turns, the picture has moved when the flash is over. Then the jump must be one of light, which
    leaves the layout of colours as it is, and the pictures before and after no further apart than it moves in that
    time. Nothing else is taken for a flash, so a flash on a cut costs nothing.

    Args:
        num_frames: how long a flash may last.
    """

    def __init__(self, finder: Finder, num_frames: int) -> None:
        assert num_frames >= 1
        self._finder, self._num_frames = finder, num_frames
        self._glances: deque[Glance] = deque()
        self._first = 0  # the number of the first remembered frame
        self._waiting: list[int] = []
        self._flash_end = 0  # cuts until here are the far edges of flashes

    def see(self, glance: Glance) -> list[int]:
        self._glances.append(glance)
        self._waiting += self._finder.see(glance)
        cuts = self._decide(self._first + len(self._glances) - 1 - self._num_frames)
        needed = self.certain() - _BEFORE
        while self._first < needed:
            self._glances.popleft()
            self._first += 1
        return cuts

    def end(self) -> list[int]:
        """See `Finder`; a flash that outlasts the film is a cut."""
        self._waiting += self._finder.end()
        return self._decide(self._first + len(self._glances))

    def certain(self) -> int:
        return min([self._finder.certain(), *self._waiting[:1]])

    def _decide(self, until: int) -> list[int]:
        """Those of the waiting cuts up to the frame `until` that are none of a flash."""
        cuts = []
        while self._waiting and self._waiting[0] <= until:
            cut = self._waiting.pop(0)
            if cut <= self._flash_end:
                continue
            if back := self._comes_back(cut):
                self._flash_end = back
            else:
                cuts.append(cut)
        return cuts

    def _comes_back(self, cut: int) -> int:
        """The frame at which the picture from before the jump at `cut` is back, or a light is out; 0 where none is."""
        place, num_glances = cut - self._first, len(self._glances)
        # Where the picture after a jump is nearest to one before; none where none is near: all of a still shot.
        near = []
        for before in [self._glances[at] for at in range(max(0, place - _BEFORE), place)]:
            limit = _LIKENESS * _distance(before, self._glances[place])
            for after in range(place + 1, min(place + self._num_frames + 1, num_glances)):
                apart = _distance(before, self._glances[after])
                if apart <= limit and _differ(before, self._glances[after]) <= _LAYOUT:
                    near.append((apart, after))
        if near:
            return self._first + min(near)[1]
        # Where a light that came on at the jump is out again, unless another shot lies under it.
        before, lit = self._glances[place - 1], self._glances[place]
        light = _brightening(before, lit)
        if _differ(before, lit) > _LAYOUT:
            return 0
        for after in range(place + 1, min(place + self._num_frames, num_glances - 1)):
            picture = self._glances[after]
            steady = abs(_brightening(picture, self._glances[after + 1])) <= _STEADY * light
            if steady and abs(_brightening(before, picture)) <= _LIKENESS * light:
                # How far the picture may move until `after`, at its speeds on both sides of the light.
                sides = range(max(0, place - _BEFORE), place), range(after, min(after + _BEFORE, num_glances))
                steps = [[_distance(self._glances[a], self._glances[b]) for a, b in pairwise(side)] for side in sides]
                way = sum(max(side, default=0.0) for side in steps) / 2 * (after - place + 1)
                return self._first + after if _distance(before, picture) <= way else 0
        return 0


def _brightening(a: Glance, b: Glance) -> float:
    """How much lighter `b` is, on the scale of `_distance`."""
    return float(b.thumbnail_D.sum() - a.thumbnail_D.sum())


def _distance(a: Glance, b: Glance) -> float:
    return float(cv2.norm(a.thumbnail_D, b.thumbnail_D, cv2.NORM_L1))


def _differ(a: Glance, b: Glance) -> float:
    return float(cv2.norm(a.layout_D, b.layout_D, cv2.NORM_L2))
