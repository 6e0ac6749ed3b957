# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Frames of a clip in; sharpness, brightness, share of black and of frozen frames out, all without weights."""

from collections.abc import Mapping, Sequence

import cv2
import numpy as np

from nemo_vfm.curate.stage import Footage


class Sharpness:
    """`sharpness`: the variance of the luma's Laplacian, mean over frames. Low is blurred, or simply flat.

    It depends on size, so it is taken on the footage's frames, whose short side is at most 256 pixels.
    """

    def columns(self) -> Sequence[str]:
        """The one score."""
        return ("sharpness",)

    def measure(self, footage: Footage) -> Mapping[str, float]:
        """The score of one clip, in squared luma steps."""
        variances = [cv2.Laplacian(frame, cv2.CV_32F).var() for frame in footage.luma_THW()[::2]]
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
        luma_THW = footage.luma_THW()
        dark = (luma_THW < self.black).mean(axis=(1, 2)) >= 0.98
        return {
            "luma_mean": float(luma_THW.mean()),
            "luma_std": float(luma_THW.std(axis=(1, 2)).mean()),
            "black_ratio": float(dark.mean()),
        }


class Freeze:
    """`freeze_ratio`: the share of neighbouring frames that are the same picture.

    Args:
        tolerance: mean absolute luma difference, in steps of 255, up to which two frames are the same. Encoders
            leave 0.1 to 0.4 of noise on still pictures.
    """

    def __init__(self, *, tolerance: float = 0.5) -> None:
        if tolerance < 0:
            raise ValueError(f"tolerance is {tolerance}, but a difference cannot be below 0")
        self.tolerance = tolerance

    def columns(self) -> Sequence[str]:
        """The one score."""
        return ("freeze_ratio",)

    def measure(self, footage: Footage) -> Mapping[str, float]:
        """The score of one clip, 0 to 1."""
        luma_THW = footage.luma_THW().astype(np.int16)
        differences = np.abs(luma_THW[1::2] - luma_THW[::2]).mean(axis=(1, 2))
        return {"freeze_ratio": float((differences <= self.tolerance).mean())}
