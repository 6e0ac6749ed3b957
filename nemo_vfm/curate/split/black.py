"""Finds fades through black: cuts around long black stretches and in the middle of short ones."""

from nemo_vfm.curate.split.finder import Gradual
from nemo_vfm.curate.split.glance import Glance


class Black:
    """A stretch of at least `min_frames` is a shot of its own; a shorter one inside the film is cut in its middle.

    Args:
        black: brightness, 0 to 255, under which a frame is black.
        min_frames: the length that makes it a shot.
    """

    def __init__(self, black: float, min_frames: int) -> None:
        self._black, self._min_frames = black, min_frames
        self._count = 0
        self._start: int | None = None

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`; a stretch is undecided until it ends or is long enough."""
        number, self._count = self._count, self._count + 1
        if glance.brightness >= self._black:
            start, self._start = self._start, None
            return [] if start is None else self._ended(start, number)
        if self._start is None:
            self._start = number
        long = self._count - self._start == self._min_frames
        return [Gradual(self._start)] if self._start > 0 and long else []

    def end(self) -> list[int]:
        """Nothing comes after a stretch that ends with the film."""
        return []

    def certain(self) -> int:
        """See `Finder`."""
        undecided = self._start is not None and self._count - self._start < self._min_frames
        return self._start if undecided and self._start is not None else self._count

    def _ended(self, start: int, stop: int) -> list[int]:
        if stop - start >= self._min_frames:
            return [Gradual(stop)]
        return [Gradual((start + stop) // 2)] if start > 0 else []
