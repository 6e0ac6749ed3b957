"""Computes optical flow between neighbouring frames once for all stages, and measures how much moves between them.

Shape letters: T pairs, H height, W width.
"""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.record.footage import ClipFrames

Lengths = NDArray[np.float32]  # (H, W)

_SMALLEST_PX = 16
_PADDED_PX = 32  # with a shorter side, DIS reads beyond long pictures and crashes the process (OpenCV 5.0)
_known: WeakKeyDictionary[ClipFrames, dict[tuple[int, int], list[Lengths | None]]] = WeakKeyDictionary()


def flow_lengths(footage: ClipFrames, *, num_pairs: int, side_px: int) -> tuple[tuple[int, int], list[Lengths | None]]:
    """Dense flow (DIS, Kroeger et al., arXiv 1603.03590) of each pair, in pixels; None where both frames are the same.

    Its width and height come first.

    Args:
        num_pairs: pairs of neighbouring frames, spread over the clip.
        side_px: flow is computed on frames whose short side is at most this.

    Raises:
        ValueError: the picture is too small for it.
    """
    pairs = footage.pairs(num_pairs)
    height, width = footage.luma(pairs[:1]).shape[1:]
    if min(height, width) < _SMALLEST_PX:
        raise ValueError(
            f"the picture is {width}x{height}, too small to measure motion; at least {_SMALLEST_PX} are needed"
        )
    ratio = min(1.0, side_px / min(height, width))
    size, known = (round(width * ratio), round(height * ratio)), _known.setdefault(footage, {})
    if (num_pairs, side_px) not in known:
        luma_THW = list(footage.luma(pairs))
        if luma_THW[0].shape != size[::-1]:
            luma_THW = [np.asarray(cv2.resize(one, size, interpolation=cv2.INTER_AREA), np.uint8) for one in luma_THW]
        right, down = (max(0, _PADDED_PX - side) for side in size)
        flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
        found: list[Lengths | None] = []
        for before, after in zip(luma_THW[::2], luma_THW[1::2], strict=True):
            if np.array_equal(before, after):
                found.append(None)
                continue
            if down or right:
                before, after = (np.pad(one, ((0, down), (0, right)), mode="edge") for one in (before, after))
            flow_HWD = flow.calc(before, after, None)  # type: ignore[call-overload]
            found.append(lengths(flow_HWD[: size[1], : size[0]]))
        known[num_pairs, side_px] = found
    return size, known[num_pairs, side_px]


def lengths(flow_HWD: NDArray[np.float32]) -> Lengths:
    """How long each vector is.

    Not cv2.magnitude: its last digit depends on where in memory the flow lies, and so on which process computed it.
    """
    x_HW, y_HW = flow_HWD[..., 0], flow_HWD[..., 1]
    return np.sqrt(x_HW * x_HW + y_HW * y_HW)


class Motion:
    """Dense optical flow (DIS, Kroeger et al., arXiv 1603.03590) between neighbouring frames.

    Scores are in percent of the frame's diagonal per second, so that they do not depend on size or frame rate:
    `motion`, the mean over all pixels, and `motion_peak`, the mean over pairs of the fastest hundredth of the pixels.
    A small object that crosses a still picture has little motion and a high peak.

    Args:
        side_px: flow is computed on frames whose short side is at most this.
        num_pairs: pairs of neighbouring frames that are compared, spread over the clip.
    """

    def __init__(self, *, side_px: int = 160, num_pairs: int = 16) -> None:
        if side_px < 32:
            raise ValueError(f"side_px is {side_px}, but flow needs a short side of at least 32 pixels")
        if num_pairs < 1:
            raise ValueError(f"num_pairs is {num_pairs}, but it must be at least 1")
        self.side_px, self.num_pairs = side_px, num_pairs

    def columns(self) -> Sequence[str]:
        return ("motion", "motion_peak")

    def measure(self, footage: ClipFrames) -> Mapping[str, float]:
        """Both scores of one clip; an image has none."""
        if footage.is_image:
            return {}
        size, flows = flow_lengths(footage, num_pairs=self.num_pairs, side_px=self.side_px)
        percent_per_s = 100 * footage.fps / float(np.hypot(*size))
        means, peaks = [], []  # of the flow's length, in pixels a frame: the mean and the 99th percentile
        for lengths_HW in flows:
            mean = peak = 0.0
            if lengths_HW is not None:
                # Not cv2.mean: for floats its last digits depend on where in memory the picture lies.
                below, part = divmod(0.99 * (lengths_HW.size - 1), 1)
                two = (int(below), min(int(below) + 1, lengths_HW.size - 1))
                low, high = np.partition(lengths_HW, two, axis=None)[list(two)]
                mean, peak = float(lengths_HW.mean(dtype=np.float64)), float(low + part * (high - low))
            means.append(mean)
            peaks.append(peak)
        return {"motion": percent_per_s * float(np.mean(means)), "motion_peak": percent_per_s * float(np.mean(peaks))}
