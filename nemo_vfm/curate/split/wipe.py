# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Detects a wipe: one picture replaces another cell by cell, each cell once, in order along a direction.

Half way through, every cell shows what was there before or what will be there after. In a dissolve it shows the mean of
both, and in a turn of the camera neither. Shape letters: T frames, N cells of the thumbnail, C colours (RGB).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.split.glance import CELLS, Glance

Array = NDArray[np.float32]
_X_N, _Y_N = (axis.ravel() / 16.0 for axis in np.meshgrid(np.arange(CELLS[0]) - 7.5, np.arange(CELLS[1]) - 4.0))
_ONE_C = np.ones(3, np.float32)
#: Straight wipes in any direction, and an iris.
_WAYS = (
    np.stack([np.ones_like(_X_N), _X_N, _Y_N], axis=1),
    np.stack([np.ones_like(_X_N), np.hypot(_X_N, _Y_N)], axis=1),
)


@dataclass(frozen=True, slots=True)
class WipeLimits:
    """What a wipe is told by; chosen on videos of other seeds than the benchmark's (docs/how-to/video/splitting.md).

    Args:
        strangeness: how far the middle's cells are from before or after, whichever is nearer, as a part of the way
            from one to the other, at most: 0 in a perfect wipe, 0.5 in a dissolve.
        balance: the part of the changing cells that has changed in the middle, at least, and has not, at least.
        order: the part of the variance of the cells' times of change that a direction or an iris explains, at least.
    """

    strangeness: float = 0.2
    balance: float = 0.35
    order: float = 0.85


def wipe_strangeness(before: Glance, middle: Glance, after: Glance) -> tuple[float, float]:
    """The mean distance of the middle's cells from before or after, and the part that is nearer to after."""
    was_N, will_N = _cells(middle, before), _cells(middle, after)
    change_N = _cells(before, after)
    total = max(float(change_N.sum()), 1.0)
    return float(np.minimum(was_N, will_N).sum()) / total, float((will_N < was_N) @ change_N) / total


def order_of(glances: Sequence[Glance]) -> float:
    """How well a direction or an iris explains when each cell changes from the first glance's to the last's, 0 to 1."""
    chosen = [*glances[: -1 : 1 + len(glances) // 24], glances[-1]]  # 24 frames tell as much as 49
    frames_TNC = np.stack([glance.thumbnail_D for glance in chosen]).reshape(len(chosen), -1, 3)
    was_TN, will_TN = (np.abs(frames_TNC - frames_TNC[end]) @ _ONE_C for end in (0, -1))
    change_N = was_TN[-1]
    time_N = (was_TN < will_TN).sum(axis=0).astype(np.float64)
    weight_N = np.sqrt(change_N * (change_N > 0.5 * change_N.mean()))
    mean = np.average(time_N, weights=weight_N**2)
    around_N = (time_N - mean) * weight_N
    spread = float(around_N @ around_N)
    if spread < 1e-6:
        return 0.0
    return max(1 - _left(way_NK, time_N, weight_N) / spread for way_NK in _WAYS)


def _left(way_NK: NDArray[np.float64], time_N: NDArray[np.float64], weight_N: NDArray[np.float64]) -> float:
    found_K = np.linalg.lstsq(way_NK * weight_N[:, None], time_N * weight_N, rcond=None)[0]
    left_N = (time_N - way_NK @ found_K) * weight_N
    return float(left_N @ left_N)


def _cells(a: Glance, b: Glance) -> Array:
    apart_N: Array = np.abs(a.thumbnail_D - b.thumbnail_D).reshape(-1, 3) @ _ONE_C  # half the time of a sum (2026-11)
    return apart_N
