# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Videos in, how much more neighbours differ across the borders of blocks than elsewhere out.

Shape letters: T frames, H height, W width.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def seam_ratio(videos: Iterable[NDArray[np.uint8]], block_px: int) -> float:
    """Mean absolute difference of two pixels with a border between them over that of two without: 1 has no seams.

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
            jump = np.abs(np.diff(video.astype(np.int16), axis=axis)).mean(axis=(0, 3 - axis, 3))
            border = (np.arange(len(jump)) + 1) % block_px == 0
            total += [jump[~border].sum(), jump[border].sum()]
            count += [(~border).sum(), border.sum()]
    if not count.all():
        raise ValueError(f"no picture is larger than one block of {block_px} px")
    elsewhere, border_mean = total / count
    return float(border_mean / elsewhere) if elsewhere else 1.0 if not border_mean else float("inf")
