"""Measures how much moves between neighbouring frames."""

from collections.abc import Mapping, Sequence

import numpy as np

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.flow import Lengths, flow_lengths, flow_size


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

    def measure(self, footage: ClipFrames) -> Mapping[str, float]:
        """Both scores of one clip; an image has none."""
        if footage.is_image:
            return {}
        size = flow_size(footage, num_pairs=self.num_pairs, side_px=self.side_px)
        percent_per_s = 100 * footage.fps / float(np.hypot(*size))
        flows = flow_lengths(footage, num_pairs=self.num_pairs, side_px=self.side_px)
        means, peaks = zip(*(_speed(lengths_HW) for lengths_HW in flows), strict=True)
        return {"motion": percent_per_s * float(np.mean(means)), "motion_peak": percent_per_s * float(np.mean(peaks))}


def _speed(lengths_HW: Lengths | None) -> tuple[float, float]:
    """Mean and 99th percentile of the flow's length, in pixels a frame."""
    if lengths_HW is None:
        return 0.0, 0.0
    # Not cv2.mean: of floats its last digits depend on where in memory the picture happens to lie.
    return float(lengths_HW.mean(dtype=np.float64)), _percentile_99(lengths_HW)


def _percentile_99(lengths_HW: Lengths) -> float:
    """What np.percentile gives, in a fifth of its time."""
    below, part = divmod(0.99 * (lengths_HW.size - 1), 1)
    two = (int(below), min(int(below) + 1, lengths_HW.size - 1))
    low, high = np.partition(lengths_HW, two, axis=None)[list(two)]
    return float(low + part * (high - low))
