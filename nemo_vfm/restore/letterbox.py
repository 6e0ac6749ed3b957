# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Some frames of a clip in, the box inside its black bars out. Shape letters: T frames, H height, W width."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DARK = 24  # grey levels: coded black wavers up to about 20
_FRAMES = 0.95  # of frames in which a bar must be dark
_UNEQUAL_PX, _UNEQUAL = 4, 0.01  # how far two bars of a pair may differ, in lines and as part of the side
_LEAST_KEPT = 0.3  # of the picture; an upright film in a wide frame fills 0.316
_LEAST_LIT = 0.25  # of the box that is anywhere brighter than a bar: titles on black ground are no framed picture


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a picture, in pixels; `right` and `bottom` are exclusive."""

    left: int
    top: int
    right: int
    bottom: int


def picture_box(luma_THW: NDArray[np.uint8]) -> Box | None:
    """The box inside black bars, with even corners as 4:2:0 wants them; None where there are no bars to cut off.

    None, too, where what is left would be no picture but a title on black ground, or nothing.
    """
    rows = _inside((luma_THW.max(axis=2) < _DARK).mean(axis=0) >= _FRAMES)
    columns = _inside((luma_THW.max(axis=1) < _DARK).mean(axis=0) >= _FRAMES)
    if rows is None or columns is None or (rows, columns) == tuple((0, length) for length in luma_THW.shape[1:]):
        return None
    (top, bottom), (left, right) = _even(*rows), _even(*columns)
    box = Box(left, top, right, bottom)
    inside = luma_THW[:, box.top : box.bottom, box.left : box.right]
    kept, lit = inside[0].size / luma_THW[0].size, (inside.max(axis=0) >= _DARK).mean() if inside.size else 0.0
    return box if kept >= _LEAST_KEPT and lit >= _LEAST_LIT else None


def _inside(dark: NDArray[np.bool_]) -> tuple[int, int] | None:
    """From the first line that is not dark to the last, exclusive; None where all are, all where bars are unequal.

    Black bars are a frame around a picture and come in pairs. A dark shot has dark edges by itself, and not as wide on
    one side as on the other: of 13 shots of the Sintel trailer one lost 30 columns of its left side to them.
    """
    bright = np.flatnonzero(~dark)
    if not len(bright):
        return None
    start, stop = int(bright[0]), int(bright[-1]) + 1
    unequal = abs(start - (len(dark) - stop)) > max(_UNEQUAL_PX, _UNEQUAL * len(dark))
    return (0, len(dark)) if unequal else (start, stop)


def _even(start: int, stop: int) -> tuple[int, int]:
    """Both even, by giving a line of the picture to the bar."""
    return start + start % 2, stop - stop % 2
