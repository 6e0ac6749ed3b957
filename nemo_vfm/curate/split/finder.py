# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Glances at frames in, cuts out as soon as they are certain; and the parts that thin out and join what others find.

A cut is the number of the first frame after it. Every finder gives its cuts ascending.
"""

from typing import Protocol

from nemo_vfm.curate.split.glance import Glance


class Finder(Protocol):
    """Finds cuts while frames come."""

    def see(self, glance: Glance) -> list[int]:
        """The cuts that have become certain with this frame."""
        ...

    def end(self) -> list[int]:
        """The cuts that are left when no frame comes any more."""
        ...

    def certain(self) -> int:
        """No cut before this frame will be given any more."""
        ...


class Spaced:
    """Another finder's cuts, but for those nearer than `min_frames` to the film's start or the cut before.

    Args:
        finder: gives the cuts.
        min_frames: the least distance.
    """

    def __init__(self, finder: Finder, min_frames: int) -> None:
        self._finder, self._min_frames, self._last = finder, min_frames, 0

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`."""
        return self._thin(self._finder.see(glance))

    def end(self) -> list[int]:
        """See `Finder`."""
        return self._thin(self._finder.end())

    def certain(self) -> int:
        """See `Finder`."""
        return self._finder.certain()

    def _thin(self, cuts: list[int]) -> list[int]:
        kept = []
        for cut in cuts:
            if cut - self._last >= self._min_frames:
                kept.append(cut)
                self._last = cut
        return kept


class Joined:
    """All cuts of one finder, and those of another that are far enough from them and from each other.

    Args:
        first: all of its cuts count.
        second: its cuts count where no other lies nearer than `min_frames`.
        min_frames: that distance.
    """

    def __init__(self, first: Finder, second: Finder, min_frames: int) -> None:
        self._first, self._second, self._min_frames = first, second, min_frames
        self._waiting: list[int] = []  # the second's, until the first is certain around them
        self._taken: list[int] = []  # given, or to be given
        self._given = -1

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`."""
        self._taken += self._first.see(glance)
        self._waiting += self._second.see(glance)
        self._choose(self._first.certain())
        return self._give(self.certain())

    def end(self) -> list[int]:
        """See `Finder`."""
        self._taken += self._first.end()
        self._waiting += self._second.end()
        last = max([0, *self._taken, *self._waiting]) + self._min_frames
        self._choose(last)
        return self._give(last + 1)

    def certain(self) -> int:
        """See `Finder`."""
        return min(self._first.certain(), self._second.certain(), *self._waiting[:1])

    def _choose(self, certain: int) -> None:
        """Decide those around which the first finder is certain."""
        while self._waiting and self._waiting[0] + self._min_frames <= certain:
            cut = self._waiting.pop(0)
            if all(abs(cut - other) >= self._min_frames for other in self._taken):
                self._taken.append(cut)

    def _give(self, before: int) -> list[int]:
        ready = sorted(cut for cut in self._taken if self._given < cut < before)
        if ready:
            self._given = ready[-1]
            self._taken = [cut for cut in self._taken if cut > self._given - 2 * self._min_frames]
        return ready
