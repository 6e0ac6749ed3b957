"""Finds vertical scratches, over at least half of the height and at the same place in all frames, and what they add.

A pole is vertical, too. But a scratch is added to the picture, which shows through: along it the contrast with the
columns beside it varies no more than between those. And it stays in place while the scene moves. `Destripe` removes it.

Shape letters: T frames, H height, W width, C columns looked at.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Plane
from nemo_vfm.restore.stripe_excess import halves

_WIDTHS = (1, 3)  # pixels, of scratches that are looked for
_GAP = 2  # pixels between a scratch and what it is compared with, beyond the blur of a codec
_BORDER = 6  # columns at each side, which have too few neighbours
# Agreement was at most 0.64 in 18 clean clips and at least 0.76 in 18 with scratches of 25 grey levels. Two lines of
# clean scenes reached 0.79 (level 2.8 times its spread) and 0.97 (spread 3.1 times that beside): the others stop them.
_MIN_AGREEMENT = 0.72  # share of rows that are brighter than both sides, less the share that are darker than both
_MIN_LEVEL = 6.0  # grey levels
_MIN_LEVEL_TO_SPREAD = 3.0  # contrast over its spread along the scratch
_MAX_SPREAD_RATIO = 2.2  # spread of the contrast along the scratch over that beside it
_BESIDE = (-9, -7, -5, 5, 7, 9)  # columns, from a scratch to those that are compared with it


@dataclass(frozen=True, slots=True)
class Scratches:
    """The scratches of a clip, and what they add to each frame."""

    count: int
    added_HW: Plane  #: grey levels; 0 except in scratched columns


def find_scratches(luma_THW: NDArray[np.uint8]) -> Scratches | None:
    """Find the scratches of frames spread over a clip; None if there are none, or a side is below 64 pixels."""
    height, width = luma_THW.shape[1:]
    if min(height, width) < 64:
        return None
    frames_THW = luma_THW.astype(np.float32)
    columns_W = np.zeros(width, bool)
    for size in _WIDTHS:
        # The contrast of each pixel with the mean of both sides; and 1 above both, -1 below both, 0 in between.
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
    """Set the columns of scratches that go through all of these rows."""
    agree_W = agree_THW.mean((0, 1))
    agree_W[:_BORDER] = agree_W[-_BORDER:] = 0
    places_C = np.flatnonzero(np.abs(agree_W) >= _MIN_AGREEMENT)  # medians are slow, so only these get any
    for place in places_C:
        around = np.clip([place + step for step in _BESIDE], 0, len(columns_W) - 1)
        level_T, spread_T = _level(over_THW[:, :, [place]])
        level, spread = float(np.median(level_T)), max(1.0, float(np.median(spread_T)))
        beside = max(1.0, float(np.median(_level(over_THW[:, :, around])[1])))
        is_steady = np.abs(np.sign(level_T).sum()) >= len(level_T) - 1  # one sign in all frames but one
        is_clear = abs(level) >= max(_MIN_LEVEL, _MIN_LEVEL_TO_SPREAD * spread)
        if is_steady and is_clear and spread <= _MAX_SPREAD_RATIO * beside:
            columns_W[place - size // 2 : place + size // 2 + 1] = True


def _level(over_THC: Plane) -> tuple[Plane, Plane]:
    """(median contrast, its spread by the median absolute deviation) along each column of each frame, (T, C)."""
    level_TC = np.median(over_THC, 1)
    spread_TC = 1.4826 * np.median(np.abs(over_THC - level_TC[:, None]), 1)
    return level_TC.astype(np.float32), spread_TC.astype(np.float32)


def _add(added_HW: Plane, frames_THW: Plane, first: int, stop: int) -> None:
    """Write what one scratch adds to its columns, `first` to `stop`: one number a column, between its two ends."""
    first, stop = max(_GAP, first - 1), min(added_HW.shape[1] - _GAP, stop + 1)
    left_TH1, right_TH1 = frames_THW[:, :, [first - _GAP]], frames_THW[:, :, [stop + _GAP - 1]]
    part_1C = np.linspace(0, 1, stop - first + 2, dtype=np.float32)[None, 1:-1]
    between_THC = left_TH1 * (1 - part_1C) + right_TH1 * part_1C
    over_HC = np.median(frames_THW[:, :, first:stop] - between_THC, 0).astype(np.float32)
    strongest_H = over_HC[:, int(np.abs(over_HC.mean(0)).argmax())]
    # Its ends: the run of rows with the highest count of rows that show it, less those that do not (Kadane).
    level = max((np.median(strongest_H[rows]) for rows in halves(len(strongest_H))), key=abs)
    sums = np.concatenate([[0], np.cumsum(np.where(strongest_H * np.sign(level) > abs(level) / 2, 1, -1))])
    bottom = int((sums - np.minimum.accumulate(sums)).argmax())
    top = int(sums[: bottom + 1].argmin())
    if top == bottom:
        return
    # One number a column: a closer fit to the scratch fits the picture, too (still pictures lost 7 dB).
    added_HW[top:bottom, first:stop] = np.median(over_HC[top:bottom], 0)
