# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Filters another finder's cuts: where the picture comes back afterwards, it was a flash and no cut."""

from collections import deque

import cv2

from nemo_vfm.curate.split.finder import Finder
from nemo_vfm.curate.split.glance import Glance

_BEFORE = 3  # a flash may take a frame or two to light up, so the picture before it is sought this far back


class WithoutFlashes:
    """Waits whether the picture of before a cut comes back soon; then it was a flash, and both its edges go.

    Nothing but a picture that comes back is taken for a flash, so a flash on a cut costs nothing.

    Args:
        finder: gives cuts.
        num_frames: how long a flash may last.
        likeness: it has come back when its distance to before is at most this part of the jump,
        layout: and that of the colours' layouts, 0 to 2, is at most this: another shot may be as light as the one
            before. Without it 7 of 180 cuts were lost, those with a flash on them (30 generated films, 2026-11).
    """

    def __init__(self, finder: Finder, num_frames: int, likeness: float = 0.35, layout: float = 0.8) -> None:
        assert num_frames >= 1
        self._finder, self._num_frames = finder, num_frames
        self._likeness, self._layout = likeness, layout
        self._glances: deque[Glance] = deque()
        self._first = 0  # the number of the first remembered frame
        self._waiting: list[int] = []
        self._flash_end = 0  # cuts until here are the far edges of flashes

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`."""
        self._glances.append(glance)
        self._waiting += self._finder.see(glance)
        cuts = self._decide(self._first + len(self._glances) - 1 - self._num_frames)
        self._forget()
        return cuts

    def end(self) -> list[int]:
        """See `Finder`; a flash that outlasts the film is a cut."""
        self._waiting += self._finder.end()
        return self._decide(self._first + len(self._glances))

    def certain(self) -> int:
        """See `Finder`."""
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
        """The last frame, after the jump at `cut`, at which the picture of before is back; 0 where it is not."""
        place = cut - self._first
        befores = [self._glances[place - back] for back in range(1, _BEFORE + 1) if place >= back]
        limits = [self._likeness * _apart(before, self._glances[place]) for before in befores]
        for after in range(place + 1, min(place + self._num_frames + 1, len(self._glances))):
            picture = self._glances[after]
            for before, limit in zip(befores, limits, strict=True):
                if _apart(before, picture) <= limit and _differ(before, picture) <= self._layout:
                    return self._first + after
        return 0

    def _forget(self) -> None:
        needed = self.certain() - _BEFORE
        while self._first < needed:
            self._glances.popleft()
            self._first += 1


def _apart(a: Glance, b: Glance) -> float:
    return float(cv2.norm(a.thumbnail_D, b.thumbnail_D, cv2.NORM_L1))


def _differ(a: Glance, b: Glance) -> float:
    return float(cv2.norm(a.layout_D, b.layout_D, cv2.NORM_L2))
