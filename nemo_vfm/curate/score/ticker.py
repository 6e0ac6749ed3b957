"""Finds news tickers: text that runs sideways along the top or the bottom while the picture does not.

Shape letters: H height, W width, F frequencies, K bands, P pairs of frames.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.bounds import require_between
from nemo_vfm.curate.record.footage import ClipFrames

_PAIRS, _GAP_S = 8, 0.2  # a ticker crosses an eighth to a third of the picture in a second
_BAND, _MARGIN = 1 / 16, 1 / 4  # height of a band, and where bands lie at top and bottom: parts of the height
_FARTHEST = 1 / 8  # of the width that is looked for, either way
_MIN_PX, _SPREAD_PX = 2, 1  # a shift that is one, and how far shifts of one ticker differ
_AGREE = 0.75  # of the pairs must have one shift
_EDGE, _STROKES = 80.0, 0.04  # Sobel's step across a stroke, and the part of each eighth of a band that has such


class Ticker:
    """Looks for a band of strokes, all along the top or the bottom, that moves sideways at a constant speed.

    `ticker.likeness` is the correlation of the best such band with itself 0.2 s later, shifted by as much as in the
    rest of the clip; 0 where there is none, and where the middle of the picture moves by the same, since the camera
    pans. `ticker.overlay` is 1 where it is at least `likeness`, else 0. A fence along a railway, seen from the train,
    is taken for a ticker; tickers slower than 2 pixels in 0.2 s of the small frame are not seen.

    Args:
        likeness: 0 to 1, from which on it is a ticker.
    """

    def __init__(self, *, likeness: float = 0.6) -> None:
        require_between(0.05, 1.0, likeness=likeness)
        self.likeness = likeness

    def columns(self) -> Sequence[str]:
        return ("ticker.overlay", "ticker.likeness")

    def measure(self, footage: ClipFrames) -> Mapping[str, float]:
        """The scores of one clip; an image has none."""
        if footage.is_image:
            return {}
        gap = max(1, round(_GAP_S * footage.fps))
        room = footage.num_frames - 1 - gap  # a clip that is too short has no pairs
        starts = sorted({(2 * k + 1) * room // (2 * _PAIRS) for k in range(_PAIRS)}) if room >= 1 else []
        moved, likeness = [_shift_between(footage, [start, start + gap]) for start in starts], 0.0
        if moved:
            shift_PK, likeness_PK, written_PK = (np.stack(part) for part in zip(*moved, strict=True))
            shift_K = np.median(shift_PK, axis=0)
            agree_K = (np.abs(shift_PK - shift_K) <= _SPREAD_PX).mean(axis=0)
            pans_K = (np.abs(shift_PK[:, -1:] - shift_K) <= _SPREAD_PX).mean(axis=0) > 0.5
            is_written_K = written_PK.mean(axis=0) >= _AGREE
            runs_K = (agree_K >= _AGREE) & (np.abs(shift_K) >= _MIN_PX) & is_written_K & ~pans_K
            likeness = float((np.median(likeness_PK, axis=0) * runs_K)[:-1].max())  # of the band most like a ticker
        return {"ticker.overlay": float(likeness >= self.likeness), "ticker.likeness": likeness}


class _BandShifts(NamedTuple):
    """How each band moved from one frame to another; the last is the middle of the picture."""

    shift_K: NDArray[np.int64]
    likeness_K: NDArray[np.float64]
    is_written_K: NDArray[np.bool_]


def _shift_between(footage: ClipFrames, pair: Sequence[int]) -> _BandShifts:
    steps = [cv2.Sobel(luma_HW, cv2.CV_32F, 1, 0) for luma_HW in footage.luma(pair)]
    height, width = steps[0].shape
    # First and last row, exclusive, of overlapping bands at top and bottom, and of the middle.
    high, margin = max(4, int(height * _BAND)), int(height * _MARGIN)
    upper = [(top, top + high) for top in range(0, max(1, margin - high + 1), max(1, high // 2))]
    bands = [*upper, *((height - stop, height - first) for first, stop in upper), (margin, height - margin)]
    written = []  # whether strokes fill a band from one side to the other
    for first, stop in bands:
        strokes_W = (np.abs(steps[0][first:stop]) >= _EDGE).mean(axis=0)
        written.append(all(float(part.mean()) >= _STROKES for part in np.array_split(strokes_W, 8)))
    written_K = np.array(written)
    if not written_K[:-1].any():  # nothing to follow, as in most clips
        return _BandShifts(np.zeros(len(bands), np.int64), np.zeros(len(bands)), written_K)
    here_HF, there_HF = (np.fft.rfft(step_HW, axis=1) for step_HW in steps)
    cross_HF = np.conj(here_HF) * there_HF
    energy_HP = np.stack([np.square(step_HW).sum(axis=1, dtype=np.float64) for step_HW in steps], axis=1)
    cross_KF = np.stack([cross_HF[first:stop].sum(axis=0) for first, stop in bands])
    energy_K = np.sqrt(np.stack([energy_HP[first:stop].sum(axis=0) for first, stop in bands]).prod(axis=1))
    alike_KW = np.fft.irfft(cross_KF, width, axis=1) / np.maximum(energy_K, 1.0)[:, None]
    farthest = max(1, int(width * _FARTHEST))
    near_KW = np.concatenate([alike_KW[:, -farthest:], alike_KW[:, : farthest + 1]], axis=1)
    return _BandShifts(near_KW.argmax(axis=1) - farthest, near_KW.max(axis=1), written_K)
