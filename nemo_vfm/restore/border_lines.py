"""Describes the rows and columns of a few frames by so few numbers that those of a whole shot can be kept.

Shape letters: H height, W width, L lines (rows, or columns), S sections of a line.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import cv2
import numpy as np
from numpy.typing import NDArray

_SECTIONS = 8
_JUMP = 4


class Lines(NamedTuple):
    """The rows, or the columns, of some frames.

    Args:
        lowest_LS: the darkest pixel of each section of each line, in any frame.
        highest_LS: the brightest.
        step_L: mean luma step from the line before, 0 for the first.
        jump_L: part of the line whose luma is 4 or more off that of the line before.
        detail_L: mean luma step along the line.
    """

    lowest_LS: NDArray[np.uint8]
    highest_LS: NDArray[np.uint8]
    step_L: NDArray[np.float32]
    jump_L: NDArray[np.float32]
    detail_L: NDArray[np.float32]

    @classmethod
    def of(cls, luma_HW: NDArray[np.uint8], turned_WH: NDArray[np.uint8]) -> Self:
        """The rows of one frame, given its transpose, over whose first axis extremes are found 20 times as fast."""
        height, width = luma_HW.shape
        padded = cv2.copyMakeBorder(turned_WH, 0, -width % _SECTIONS, 0, 0, cv2.BORDER_REPLICATE)
        sections = np.asarray(padded, dtype=np.uint8).reshape(_SECTIONS, -1, height)
        step_L, jump_L, detail_L = (np.zeros(height, np.float32) for _ in range(3))
        if height > 1:
            steps = cv2.absdiff(luma_HW[1:], luma_HW[:-1])
            step_L[1:] = _sums(steps, 1) / width
            jump_L[1:] = _sums(cv2.threshold(steps, _JUMP - 1, 1, cv2.THRESH_BINARY)[1], 1) / width
        if width > 1:
            detail_L[:] = _sums(cv2.absdiff(turned_WH[1:], turned_WH[:-1]), 0) / (width - 1)
        return cls(sections.min(axis=1).T, sections.max(axis=1).T, step_L, jump_L, detail_L)

    @classmethod
    def joined(cls, frames: "Sequence[Lines]") -> Self:
        """The same lines, of several frames."""
        lowest, highest, *means = zip(*frames, strict=True)
        return cls(np.min(lowest, axis=0), np.max(highest, axis=0), *(np.mean(one, axis=0) for one in means))


class Borders(NamedTuple):
    """The rows and the columns of some frames."""

    rows: Lines
    columns: Lines

    @classmethod
    def of(cls, luma_HW: NDArray[np.uint8]) -> Self:
        """Those of one frame."""
        turned_WH = np.asarray(cv2.transpose(luma_HW), dtype=np.uint8)
        return cls(Lines.of(luma_HW, turned_WH), Lines.of(turned_WH, luma_HW))

    @classmethod
    def joined(cls, frames: "Sequence[Borders]") -> Self:
        """Those of several frames of one size."""
        return cls(*(Lines.joined(lines) for lines in zip(*frames, strict=True)))


def _sums(steps: cv2.typing.MatLike, axis: int) -> NDArray[np.int32]:
    return np.asarray(cv2.reduce(steps, axis, cv2.REDUCE_SUM, dtype=cv2.CV_32S), dtype=np.int32).ravel()
