"""Measures brightness, contrast and the share of black frames."""

import math
from collections.abc import Mapping, Sequence

import cv2
import numpy as np

from nemo_vfm.curate.record.footage import ClipFrames

_NUM_PAIRS = 16  # neighbouring frames, spread over the clip


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
        return ("luma_mean", "luma_std", "black_ratio")

    def measure(self, footage: ClipFrames) -> Mapping[str, float]:
        """The scores of one clip."""
        luma_THW = footage.luma(footage.pairs(_NUM_PAIRS))
        means, deviations = zip(*(cv2.meanStdDev(luma_HW) for luma_HW in luma_THW), strict=True)
        dark_T = (luma_THW < math.ceil(self.black)).mean(axis=(1, 2)) >= 0.98
        return {
            "luma_mean": float(np.mean(means)),
            "luma_std": float(np.mean(deviations)),
            "black_ratio": float(dark_T.mean()),
        }
