"""Detects a wipe: one picture replaces another cell by cell, each cell once, in order along a direction.

Half way through, every cell shows what was there before or what will be there after. In a dissolve it shows the mean of
both, and in a turn of the camera neither. Shape letters: T frames, N cells of the thumbnail, C colours (RGB).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.split.finder import CELLS, Glance

Array = NDArray[np.float32]
Times = NDArray[np.float64]
_X_N, _Y_N = (axis.ravel() / 16.0 for axis in np.meshgrid(np.arange(CELLS[0]) - 7.5, np.arange(CELLS[1]) - 4.0))
_ONE_C = np.ones(3, np.float32)
#: Straight wipes in any direction, and an iris
_WAYS = (
    np.stack([np.ones_like(_X_N), _X_N, _Y_N], axis=1),
    np.stack([np.ones_like(_X_N), np.hypot(_X_N, _Y_N)], axis=1),
)
#: How far from its place in the order a cell's change may be, as a part of all times; 0.15 of ten takes in whip pans
_NEAR = 0.12


@dataclass(frozen=True, slots=True)
class WipeLimits:
    """The criteria of a wipe, chosen on videos of other seeds than the benchmark's (docs/how-to/video/splitting.md)."""

    #: how far the middle's cells are from before or after, whichever is nearer, as a part of the way from one to the
    #: other, at most: 0 in a perfect wipe, 0.5 in a dissolve
    strangeness: float = 0.25
    #: the part of the changing cells that has changed in the middle, at least, and has not, at least
    balance: float = 0.35
    order: float = 0.7  #: the part of the change that comes when a direction or an iris says, at least
    #: the part of the variance of the cells' times of change that it explains, at least: what changes everywhere at
    #: once is no wipe
    explained: float = 0.4


@dataclass(frozen=True, slots=True)
class Sweep:
    """How a change goes over the picture."""

    order: float  #: see `WipeLimits`
    explained: float  #: see `WipeLimits`
    middle: float  #: when the mean cell changes, from the middle of the glances, as a part of their time


def wipe_strangeness(before: Glance, middle: Glance, after: Glance) -> tuple[float, float]:
    """The mean distance of the middle's cells from before or after, and the part that is nearer to after."""
    was_N, will_N = _cells(middle, before), _cells(middle, after)
    change_N = _cells(before, after)
    total = max(float(change_N.sum()), 1.0)
    return float(np.minimum(was_N, will_N).sum()) / total, float((will_N < was_N) @ change_N) / total


def sweep_of(glances: Sequence[Glance]) -> Sweep:
    """How well a direction or an iris explains when each cell changes most.

    A cell's largest change is sought between frames near each other, since a shot that moves is soon far from the first
    glance and from the last. A cell that changes as much at another time tells little.
    """
    chosen = glances[:: max(1, len(glances) // 24)]  # 25 frames tell as much as 49
    if len(chosen) < 7:  # any times are in some order where there are only a few
        return Sweep(0.0, 0.0, 0.0)
    frames_TNC = np.stack([glance.thumbnail_D for glance in chosen]).reshape(len(chosen), -1, 3)
    pairs_TNC = frames_TNC[1:] + frames_TNC[:-1]  # two frames against the next two: largest at the change itself
    change_TN = np.abs(pairs_TNC[2:] - pairs_TNC[:-2]) @ _ONE_C
    max_N, time_N = change_TN.max(axis=0), change_TN.argmax(axis=0).astype(np.float64)
    is_apart_TN = np.abs(np.arange(len(change_TN))[:, None] - time_N) > 4
    weight_N = np.maximum(max_N - (change_TN * is_apart_TN).max(axis=0), 1e-6).astype(np.float64)
    spread = _mean((time_N - _mean(time_N, weight_N)) ** 2, weight_N)
    if spread < 1e-6:
        return Sweep(0.0, 0.0, 0.0)
    fits = []  # the times that each way says
    for way_NK in _WAYS:
        scaled_N = weight_N
        for _ in range(2):  # cells far from it, where something else moved, count less the second time
            scaled_KN = way_NK.T * scaled_N
            way_N: Times = way_NK @ np.linalg.solve(scaled_KN @ way_NK, scaled_KN @ time_N)
            left_N = np.abs(time_N - way_N)
            scaled_N = weight_N / (1 + (left_N / max(1.0, 1.5 * _mean(left_N, scaled_N))) ** 2)
        fits.append(way_N)
    left, fitted_N = min(((_mean((time_N - one_N) ** 2, weight_N), one_N) for one_N in fits), key=lambda fit: fit[0])
    is_near_N = np.abs(time_N - fitted_N) <= _NEAR * len(change_TN)
    middle = (float(fitted_N.mean()) + 1.5) / (len(chosen) - 1) - 0.5
    return Sweep(_mean(is_near_N, max_N), 1 - left / spread, middle)


def _mean(values_N: NDArray[Any], weight_N: NDArray[Any]) -> float:
    return float(values_N @ weight_N) / max(float(weight_N.sum()), 1e-6)


def _cells(a: Glance, b: Glance) -> Array:
    apart_N: Array = np.abs(a.thumbnail_D - b.thumbnail_D).reshape(-1, 3) @ _ONE_C  # half the time of a sum (2026-11)
    return apart_N
