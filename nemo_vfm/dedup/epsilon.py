"""Proposes a threshold from clips' similarities to their nearest, with a histogram and the removals by threshold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nemo_vfm.core.types.json_value import Json

_BINS = 100
_WIDTH = 2  # bins on either side that a smoothed count takes in
GRID = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
_MIN_CLIPS, _MIN_COPIES = 50, 5
_DEPTH = 0.5  # a valley is at most half as high as the lower of the hills beside it
_LARGEST = 0.35  # beyond it clips are not copies, whatever the histogram says


@dataclass(frozen=True, slots=True)
class Proposal:
    """A threshold and where it comes from."""

    epsilon: float  #: what is more alike than 1 - epsilon goes
    how: str  #: valley, knee, or given, where the likenesses do not tell


def propose(likenesses: Sequence[float], otherwise: float) -> Proposal:
    """The epsilon that the likenesses themselves suggest.

    Copies make a hill next to 1 and all else a hill below. The valley between them is the place to cut. Without a
    valley it is the knee of the curve of what is removed: beyond it a little more epsilon takes much more. With less
    than 50 clips, or a curve without a knee, it is what was given.

    Args:
        likenesses: of each clip to the one most like it.
        otherwise: epsilon where nothing can be told.
    """
    values = np.asarray(likenesses, dtype=np.float64)
    if len(values) < _MIN_CLIPS:
        return Proposal(otherwise, "given")
    # The hill of copies ends in the middle of the lowest stretch between it and a hill below.
    counts = np.asarray(histogram(likenesses)["counts"], dtype=np.float64)
    smooth = np.convolve(np.pad(counts, _WIDTH, mode="reflect"), np.full(2 * _WIDTH + 1, 0.2), mode="valid")
    depths = np.full(len(counts), np.inf)
    for cut in range(round((1 - _LARGEST) * _BINS), _BINS - 1):
        if counts[cut + 1 :].sum() >= max(_MIN_COPIES, 0.005 * counts.sum()):
            lower_hill = min(smooth[:cut].max(), smooth[cut + 1 :].max())
            depths[cut] = smooth[cut] / lower_hill if lower_hill else np.inf
    if depths.min() <= _DEPTH:
        low = np.flatnonzero(depths == depths.min())
        longest = max(np.split(low, np.flatnonzero(np.diff(low) > 1) + 1), key=len)
        return Proposal(round(1 - float(longest.mean() + 0.5) / _BINS, 4), "valley")
    # The epsilon of the grid that lies farthest below the straight line from the curve's beginning to its end.
    grid = np.asarray([epsilon for epsilon in GRID if epsilon <= _LARGEST])
    gone = np.asarray([(values > 1 - epsilon).mean() for epsilon in grid])
    if gone[-1] - gone[0] > 0:
        below = (grid - grid[0]) / (grid[-1] - grid[0]) - (gone - gone[0]) / (gone[-1] - gone[0])
        best = int(np.argmax(below))
        if below[best] > 0.1:
            return Proposal(float(grid[best]), "knee")
    return Proposal(otherwise, "given")


def histogram(likenesses: Sequence[float]) -> dict[str, Json]:
    """Counts in a hundred cells from 0 to 1; likenesses below 0 are in the first."""
    counts, edges = np.histogram(np.clip(np.asarray(likenesses, dtype=np.float64), 0, 1), bins=_BINS, range=(0, 1))
    return {"edges": [round(float(edge), 4) for edge in edges], "counts": [int(count) for count in counts]}


def curve(removed: Callable[[float], float]) -> list[dict[str, float]]:
    """For each epsilon of the grid, the share of clips that would go, in percent.

    Args:
        removed: of a threshold, the share of clips above it that are not kept.
    """
    return [{"epsilon": epsilon, "removed_percent": round(100 * removed(1 - epsilon), 3)} for epsilon in GRID]
