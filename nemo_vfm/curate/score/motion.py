# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Pairs of neighbouring frames in, how much moves out. Shape letters: T frames, H height, W width."""

from collections.abc import Mapping, Sequence

import cv2
import numpy as np

from nemo_vfm.curate.footage import Footage


class Motion:
    """Dense optical flow (DIS, Kroeger et al., arXiv 1603.03590) between neighbouring frames.

    Scores are in percent of the frame's diagonal per second, so that they do not depend on size or frame rate:
    `motion`, the mean over all pixels, and `motion_peak`, the mean over pairs of the fastest hundredth of the pixels.
    A small thing that crosses a still picture has little motion and a high peak.

    Args:
        side_px: flow is computed on frames whose short side is at most this.
        num_pairs: pairs of neighbouring frames that are looked at, spread over the clip.
    """

    def __init__(self, *, side_px: int = 160, num_pairs: int = 16) -> None:
        if side_px < 32:
            raise ValueError(f"side_px is {side_px}, but flow needs a short side of at least 32 pixels")
        if num_pairs < 1:
            raise ValueError(f"num_pairs is {num_pairs}, but it must be at least 1")
        self.side_px, self.num_pairs = side_px, num_pairs

    def columns(self) -> Sequence[str]:
        """The names of the two scores."""
        return ("motion", "motion_peak")

    def measure(self, footage: Footage) -> Mapping[str, float]:
        """Both scores of one clip."""
        luma_THW = [_at_most(frame, self.side_px) for frame in footage.luma(footage.pairs(self.num_pairs))]
        height, width = luma_THW[0].shape
        if min(height, width) < 16:
            raise ValueError(f"the picture is {width}x{height}, too small to see motion in; at least 16 are needed")
        percent_per_s = 100 * footage.fps / float(np.hypot(height, width))
        flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
        speeds = [_speed(flow, a, b) for a, b in zip(luma_THW[::2], luma_THW[1::2], strict=True)]
        means, peaks = zip(*speeds, strict=True)
        return {"motion": percent_per_s * float(np.mean(means)), "motion_peak": percent_per_s * float(np.mean(peaks))}


def _speed(flow: cv2.DISOpticalFlow, before: cv2.typing.MatLike, after: cv2.typing.MatLike) -> tuple[float, float]:
    """Mean and 99th percentile of the flow's length, in pixels a frame."""
    if np.array_equal(before, after):
        return 0.0, 0.0
    length = np.linalg.norm(flow.calc(before, after, None), axis=2)  # type: ignore[call-overload]
    return float(length.mean()), float(np.percentile(length, 99))


def _at_most(image: cv2.typing.MatLike, side_px: int) -> cv2.typing.MatLike:
    height, width = image.shape
    ratio = side_px / min(height, width)
    if ratio >= 1:
        return image
    return cv2.resize(image, (round(width * ratio), round(height * ratio)), interpolation=cv2.INTER_AREA)
