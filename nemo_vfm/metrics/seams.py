"""Measures how much more neighbouring pixels differ across block borders than elsewhere.

Only brightness counts: H.264 stores colour at half the resolution, whose own blocks of 2 pixels lie on every border.

Shape letters: T frames, H height, W width.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601
_FLAT = 1e-3  # of 255: below it a jump is rounding


def seam_ratio(videos: Iterable[NDArray[np.uint8]], block_px: int) -> float:
    """Mean difference in brightness of two pixels with a border between them over that of two without: 1 has no seams.

    Args:
        videos: (T, H, W, 3) each.
        block_px: side of a block; borders lie at its multiples.

    Raises:
        ValueError: a block of fewer than two pixels, or no picture is larger than one.
    """
    if block_px < 2:
        raise ValueError(f"block_px must be 2 or more, got {block_px}")
    total, count = np.zeros(2), np.zeros(2)  # elsewhere, at borders
    for video in videos:
        for axis in (1, 2):
            jump = np.abs(np.diff(video @ _LUMA, axis=axis)).mean(axis=(0, 3 - axis))
            border = (np.arange(len(jump)) + 1) % block_px == 0
            total += [jump[~border].sum(), jump[border].sum()]
            count += [(~border).sum(), border.sum()]
    if not count.all():
        raise ValueError(f"no picture is larger than one block of {block_px} px")
    elsewhere, border_mean = total / count
    if elsewhere < _FLAT:
        return 1.0 if border_mean < _FLAT else float("inf")
    return float(border_mean / elsewhere)
