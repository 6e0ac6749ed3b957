"""Scores how much of one clip another one shows, even cropped, scaled, recoded, cut or at another speed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.dedup.keypoints import LEAST, Frame, Place, agreement, registered

# Registered frames of one moment agree to 0.8 and more (a logo pasted over costs 0.15), other moments to less.
_DIFFERENT, _SAME = 0.6, 0.85
_SCALE, _SHIFT = 0.1, 0.08  # by which two places of one crop differ, as shares
_HYPOTHESES = 12


def shown(a: Sequence[Frame], b: Sequence[Frame]) -> float:
    """The share of the shorter clip's frames that the longer one shows at one place and in order, 0 to 1.

    Frames in which nothing can be found again count for neither side.
    """
    short, long = sorted(
        ([f for f in a if len(f.points_N2) >= LEAST], [f for f in b if len(f.points_N2) >= LEAST]), key=len
    )
    if not short:
        return 0.0
    places = {(i, j): place for i, x in enumerate(short) for j, y in enumerate(long) if (place := registered(x, y))}
    graded = {at: _graded(short[at[0]], long[at[1]], place) for at, place in places.items()}
    best = sorted(graded, key=lambda at: -graded[at])[:_HYPOTHESES]
    return max(
        (_in_order(_consistent(places[at], places, graded), (len(short), len(long))) for at in best), default=0.0
    ) / len(short)


def same(a: Frame, b: Frame) -> bool:
    """Whether two frames show the same picture at all."""
    place = registered(a, b)
    return place is not None and _graded(a, b, place) > 0


def _graded(a: Frame, b: Frame, place: Place) -> float:
    return min(1.0, max(0.0, (agreement(a, b, place) - _DIFFERENT) / (_SAME - _DIFFERENT)))


def _consistent(
    one: Place, places: dict[tuple[int, int], Place], graded: dict[tuple[int, int], float]
) -> dict[tuple[int, int], float]:
    """The pairs of frames whose place is `one`: a crop stays where it is while the clip runs."""
    return {
        at: graded[at]
        for at, other in places.items()
        if abs(other.scale / one.scale - 1) < _SCALE
        and max(abs(other.shift_x - one.shift_x), abs(other.shift_y - one.shift_y)) < _SHIFT
    }


def _in_order(graded: dict[tuple[int, int], float], size: tuple[int, int]) -> float:
    """The largest sum over frames of the one clip, each with a frame of the other that is no earlier than the last."""
    best: NDArray[np.float64] = np.zeros(size[1])
    for i in range(size[0]):
        row = np.array([graded.get((i, j), 0.0) for j in range(size[1])])
        best = np.maximum(best, np.maximum.accumulate(best) + row)
    return float(best.max())
