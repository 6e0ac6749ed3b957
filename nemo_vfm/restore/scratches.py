"""Finds single upright scratches that stay in place for at least half of the height, and what they add.

A pole is as upright as a scratch. But a scratch is added to the picture, and what lies behind shows through. So along a
scratch the difference from its sides varies no more than beside it. And it stays in place while the scene moves.

Shape letters: T frames, H height, W width, C columns looked at.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Plane
from nemo_vfm.restore.stripe_excess import halves

_WIDTHS = (1, 3)  # pixels, of the means that are compared with their sides
_GAP = 2  # pixels to a side, beyond the blur of a coder
_BORDER = 6  # columns at each side, which have no neighbours
# Clean clips and clips with scratches of 25 grey levels, 18 of each: agreement at most 0.64 and at least 0.76, but
# for a line in a drawn room (0.79, with 2.8 times its spread) and one behind a window (0.97, 3.1 times its sides').
_AGREE = 0.72  # of the rows, those above both sides less those below both
_LEAST = 6.0  # grey levels
_CLEAR = 3.0  # times the spread along it
_ROUGHER = 2.2  # times the spread along its sides
_BESIDE = (-9, -7, -5, 5, 7, 9)


@dataclass(frozen=True, slots=True)
class Scratches:
    """Where scratches are, and what they add."""

    count: int  #: how many
    added_HW: Plane  #: grey levels; 0 but for a few columns


def find_scratches(luma_THW: NDArray[np.uint8]) -> Scratches | None:
    """The scratches that all of some frames, spread over a clip, have at the same place; None without."""
    height, width = luma_THW.shape[1:]
    if min(height, width) < 64:
        return None
    frames_THW = luma_THW.astype(np.float32)
    columns_W = np.zeros(width, bool)
    for size in _WIDTHS:
        # How much brighter each place is than the mean of its sides; and 1 above both, -1 below both, 0 in between.
        far = size // 2 + _GAP
        core_THW = np.stack([cv2.blur(frame, (size, 1)) for frame in frames_THW])
        left_THW, right_THW = np.roll(frames_THW, far, 2), np.roll(frames_THW, -far, 2)
        above = (core_THW > left_THW) & (core_THW > right_THW)
        below = (core_THW < left_THW) & (core_THW < right_THW)
        over_THW = np.asarray(core_THW - (left_THW + right_THW) / 2, np.float32)
        agree_THW = np.asarray(above, np.float32) - below
        for rows in halves(height):
            _mark(columns_W, over_THW[:, rows], agree_THW[:, rows], size)
    if not columns_W.any():
        return None
    groups = np.split(np.flatnonzero(columns_W), np.flatnonzero(np.diff(np.flatnonzero(columns_W)) > 2) + 1)
    added_HW = np.zeros((height, width), np.float32)
    for group in groups:
        _add(added_HW, frames_THW, int(group[0]), int(group[-1]) + 1)
    return Scratches(len(groups), added_HW)


def _mark(columns_W: NDArray[np.bool_], over_THW: Plane, agree_THW: Plane, size: int) -> None:
    """Mark the columns in which half of the height is scratched."""
    agree_W = agree_THW.mean((0, 1))
    agree_W[:_BORDER] = agree_W[-_BORDER:] = 0
    places_C = np.flatnonzero(np.abs(agree_W) >= _AGREE)  # medians are slow: only of these
    for place in places_C:
        around = np.clip([place + step for step in _BESIDE], 0, len(columns_W) - 1)
        level_T, spread_T = _level(over_THW[:, :, [place]])
        level, spread = float(np.median(level_T)), max(1.0, float(np.median(spread_T)))
        beside = max(1.0, float(np.median(_level(over_THW[:, :, around])[1])))
        same = np.abs(np.sign(level_T).sum()) >= len(level_T) - 1
        if same and abs(level) >= max(_LEAST, _CLEAR * spread) and spread <= _ROUGHER * beside:
            columns_W[place - size // 2 : place + size // 2 + 1] = True


def _level(over_THC: Plane) -> tuple[Plane, Plane]:
    """Of each frame and column, the middle of the differences along it and how they spread, (T, C)."""
    level_TC = np.median(over_THC, 1)
    spread_TC = 1.4826 * np.median(np.abs(over_THC - level_TC[:, None]), 1)
    return level_TC.astype(np.float32), spread_TC.astype(np.float32)


def _add(added_HW: Plane, frames_THW: Plane, first: int, stop: int) -> None:
    """What one scratch adds to each of its columns: the same all along it, and nothing beyond its ends."""
    first, stop = max(_GAP, first - 1), min(added_HW.shape[1] - _GAP, stop + 1)
    left_TH1, right_TH1 = frames_THW[:, :, [first - _GAP]], frames_THW[:, :, [stop + _GAP - 1]]
    part_1C = np.linspace(0, 1, stop - first + 2, dtype=np.float32)[None, 1:-1]
    between_THC = left_TH1 * (1 - part_1C) + right_TH1 * part_1C
    over_HC = np.median(frames_THW[:, :, first:stop] - between_THC, 0).astype(np.float32)
    strongest_H = over_HC[:, int(np.abs(over_HC.mean(0)).argmax())]
    # From where to where it goes: the rows that tell for it, less those that tell against it, are most.
    level = max((np.median(strongest_H[rows]) for rows in halves(len(strongest_H))), key=abs)
    sums = np.concatenate([[0], np.cumsum(np.where(strongest_H * np.sign(level) > abs(level) / 2, 1, -1))])
    least = np.minimum.accumulate(sums)
    bottom = int((sums - least).argmax())
    top = int(sums[: bottom + 1].argmin())
    if top == bottom:
        return
    # One number a column: what follows the scratch more closely follows the picture, too (still pictures lost 7 dB).
    added_HW[top:bottom, first:stop] = np.median(over_HC[top:bottom], 0)
