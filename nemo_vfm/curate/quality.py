# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Frames of a clip in; sharpness, brightness, share of black and of frozen frames out, all without weights."""

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.footage import Footage

_NUM_PAIRS = 16  # neighbouring frames, spread over the clip


class Sharpness:
    """`sharpness`: the variance of the luma's Laplacian, mean over frames. Low is blurred, or simply flat.

    It depends on size, so it is taken on the footage's frames, whose short side is at most 256 pixels.
    """

    def columns(self) -> Sequence[str]:
        """The one score."""
        return ("sharpness",)

    def measure(self, footage: Footage) -> Mapping[str, float]:
        """The score of one clip, in squared luma steps."""
        variances = [cv2.Laplacian(frame, cv2.CV_32F).var() for frame in footage.luma(footage.pairs(_NUM_PAIRS)[::2])]
        return {"sharpness": float(np.mean(variances))}


class Brightness:
    """`luma_mean` and `luma_std` (contrast) over all pixels, 0 to 255, and `black_ratio`, the share of black frames.

    Args:
        black: a frame is black if 98 % of its luma is under this, 0 to 255.
    """

    def __init__(self, *, black: float = 24.0) -> None:
        if not 0 < black < 256:
            raise ValueError(f"black is {black}, but luma lies between 0 and 255")
        self.black = black

    def columns(self) -> Sequence[str]:
        """The three scores."""
        return ("luma_mean", "luma_std", "black_ratio")

    def measure(self, footage: Footage) -> Mapping[str, float]:
        """The scores of one clip."""
        luma_THW = footage.luma(footage.pairs(_NUM_PAIRS))
        dark = (luma_THW < self.black).mean(axis=(1, 2)) >= 0.98
        return {
            "luma_mean": float(luma_THW.mean()),
            "luma_std": float(luma_THW.std(axis=(1, 2)).mean()),
            "black_ratio": float(dark.mean()),
        }


class Freeze:
    """`freeze_ratio`: the share of neighbouring frames that are the same picture.

    The mean difference of two frames cannot tell: a small pale thing that moves gives 0.4 luma steps, a still title
    with film grain as much. The largest change of any block of 8x8 pixels can: 0 to 2 in repeated frames, above 2.2
    in a barely moving title, above 7 in the pale thing.

    Args:
        tolerance: the largest change of a block's mean luma, in steps of 255, up to which two frames are the same.
    """

    def __init__(self, *, tolerance: float = 2.0) -> None:
        if tolerance < 0:
            raise ValueError(f"tolerance is {tolerance}, but a difference cannot be below 0")
        self.tolerance = tolerance

    def columns(self) -> Sequence[str]:
        """The one score."""
        return ("freeze_ratio",)

    def measure(self, footage: Footage) -> Mapping[str, float]:
        """The score of one clip, 0 to 1."""
        blocks = [_block_means(frame) for frame in footage.luma(footage.pairs(_NUM_PAIRS))]
        changes = [float(np.abs(after - before).max()) for before, after in zip(blocks[::2], blocks[1::2], strict=True)]
        return {"freeze_ratio": float(np.mean(np.array(changes) <= self.tolerance))}


def _block_means(luma_HW: NDArray[np.uint8]) -> NDArray[np.float32]:
    height, width = luma_HW.shape
    size = (max(1, width // 8), max(1, height // 8))
    return np.asarray(cv2.resize(luma_HW.astype(np.float32), size, interpolation=cv2.INTER_AREA), dtype=np.float32)
