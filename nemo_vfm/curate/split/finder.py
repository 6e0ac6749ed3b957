"""Defines finders, which turn glances at frames into cuts as soon as they are certain, and thins and joins their cuts.

A cut is the number of the first frame after it. Every finder gives its cuts ascending.
"""

from typing import Protocol

from nemo_vfm.curate.split.glance import Glance


class Gradual(int):
    """A cut in the middle of a transition that lasts: a dissolve, a fade or a wipe. A plain number is a hard cut."""


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
        self._chosen: list[int] = []  # to be given once nothing can come before them
        self._given: list[int] = []  # the last few

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`."""
        self._chosen += self._first.see(glance)
        self._waiting += self._second.see(glance)
        return self._give() if self._chosen or self._waiting else []

    def end(self) -> list[int]:
        """See `Finder`."""
        self._chosen += self._first.end()
        self._waiting += self._second.end()
        self._choose(max([0, *self._chosen, *self._waiting]) + self._min_frames)
        return sorted(self._chosen)

    def certain(self) -> int:
        """See `Finder`."""
        certain = min(self._first.certain(), self._second.certain())
        return min(certain, self._waiting[0]) if self._waiting else certain

    def _give(self) -> list[int]:
        self._choose(self._first.certain())
        certain = self.certain()
        ready = sorted(cut for cut in self._chosen if cut < certain)
        self._chosen = [cut for cut in self._chosen if cut >= certain]
        self._given = [cut for cut in self._given + ready if cut > certain - self._min_frames]
        return ready

    def _choose(self, certain: int) -> None:
        """Decide those of the second around which the first is certain."""
        while self._waiting and self._waiting[0] + self._min_frames <= certain:
            cut = self._waiting.pop(0)
            if all(abs(cut - other) >= self._min_frames for other in self._given + self._chosen):
                self._chosen.append(cut)
