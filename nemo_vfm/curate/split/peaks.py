"""Finds frames whose content score is high, by itself or over its neighbours'."""

from collections import deque

from nemo_vfm.curate.split.glance import Glance


class Peaks:
    """Frames whose content score is far above the mean of their neighbours', as PySceneDetect's AdaptiveDetector.

    Args:
        ratio: how far.
        window: neighbours on each side.
        min_content: a lower score is no cut, whatever the neighbours.
    """

    def __init__(self, ratio: float, window: int, min_content: float) -> None:
        self._ratio, self._window, self._min_content = ratio, window, min_content
        self._scores: deque[float] = deque(maxlen=2 * window + 1)
        self._count = 0

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`; `window` frames behind."""
        self._scores.append(glance.content)
        self._count += 1
        full = len(self._scores) == 2 * self._window + 1
        return [self._count - 1 - self._window] if full and self._stands_out() else []

    def end(self) -> list[int]:
        """The last `window` frames have too few neighbours."""
        return []

    def certain(self) -> int:
        """See `Finder`."""
        return max(0, self._count - self._window)

    def _stands_out(self) -> bool:
        score = self._scores[self._window]
        if score < self._min_content:
            return False
        mean = (sum(self._scores) - score) / (2 * self._window)
        return score >= self._ratio * mean


class Above:
    """Frames whose content score reaches a threshold, as PySceneDetect's ContentDetector.

    Args:
        threshold: of the content score.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold, self._count = threshold, 0

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`."""
        self._count += 1
        return [self._count - 1] if glance.content >= self._threshold else []

    def end(self) -> list[int]:
        """Nothing is left."""
        return []

    def certain(self) -> int:
        """See `Finder`."""
        return self._count
