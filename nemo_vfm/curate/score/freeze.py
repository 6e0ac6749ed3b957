"""Measures the share of neighbouring frames that show the same picture."""

from collections.abc import Mapping, Sequence

import cv2
import numpy as np

from nemo_vfm.curate.record.footage import ClipFrames

_NUM_PAIRS = 16  # neighbouring frames, spread over the clip


class Freeze:
    """`freeze_ratio`: the share of neighbouring frames that are the same picture.

    The mean difference of two frames cannot distinguish them: a small pale object that moves gives 0.4 luma steps, and
    so does a still title with film grain. The largest change of any block of 8x8 pixels can: 0 to 2 in repeated frames,
    above 2.2 in a barely moving title, above 7 for the pale object.

    Args:
        tolerance: two frames are the same if no block's mean luma changes by more than this, in steps of 255.
    """

    def __init__(self, *, tolerance: float = 2.0) -> None:
        if tolerance < 0:
            raise ValueError(f"tolerance is {tolerance}, but a difference cannot be below 0")
        self.tolerance = tolerance

    def columns(self) -> Sequence[str]:
        return ("freeze_ratio",)

    def measure(self, footage: ClipFrames) -> Mapping[str, float]:
        """The score of one clip, 0 to 1; an image has none."""
        if footage.is_image:
            return {}
        luma_THW = footage.luma(footage.pairs(_NUM_PAIRS))
        blocks = max(1, luma_THW.shape[2] // 8), max(1, luma_THW.shape[1] // 8)
        changes = []
        for before_HW, after_HW in zip(luma_THW[::2], luma_THW[1::2], strict=True):
            change_HW = cv2.subtract(after_HW, before_HW, dtype=cv2.CV_32F)
            changes.append(cv2.norm(cv2.resize(change_HW, blocks, interpolation=cv2.INTER_AREA), cv2.NORM_INF))
        return {"freeze_ratio": float(np.mean(np.array(changes) <= self.tolerance))}
