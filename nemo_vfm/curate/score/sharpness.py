"""Measures how sharp the frames of a clip are."""

from collections.abc import Mapping, Sequence

import cv2
import numpy as np

from nemo_vfm.curate.record.footage import ClipFrames

_NUM_PAIRS = 16  # neighbouring frames, spread over the clip


class Sharpness:
    """`sharpness`: the variance of the luma's Laplacian, mean over frames. Low is blurred, or simply flat.

    It depends on the size, so it is measured on small frames, whose short side is at most 256 pixels.
    """

    def columns(self) -> Sequence[str]:
        return ("sharpness",)

    def measure(self, footage: ClipFrames) -> Mapping[str, float]:
        """The score of one clip, in squared luma steps."""
        luma_THW = footage.luma(footage.pairs(_NUM_PAIRS)[::2])
        deviations = [cv2.meanStdDev(cv2.Laplacian(luma_HW, cv2.CV_16S))[1] for luma_HW in luma_THW]
        return {"sharpness": float(np.square(deviations).mean())}
