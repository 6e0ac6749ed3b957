"""Computes a vector of frames without any weights: the colours, their layout from top to bottom, and the grain.

Two parts of one drive show different places and yet the same kind of picture. A network would recognise it, and so do
these three properties. The vector's length is at most 1: it is short where a picture says little, and such a clip is
similar to no other. Shape letters: T frames, H height, W width, C colours (RGB), N rows, D the vector's width.
"""

from itertools import product

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Frames

_BINS = (6, 8, 8)  # of L, a and b
_RANGE = ((0.0, 100.0), (-60.0, 60.0), (-60.0, 60.0))
_ROWS, _BANDS, _COLUMNS = 16, 8, 64
_BLACK = 24
# What is below these is noise: six units of L, a or b a row, and two of the logarithm of the grain.
_ROW_NOISE, _GRAIN_NOISE, _GRAIN_MEAN = 36.0 * _ROWS, 4.0, 1.5
# Shares of the cosine. With them two dash-cam clips of one drive come to 0.86, the next pair of other clips to 0.67.
_COLOURS, _PROFILE, _GRAIN = 0.35, 0.5, 0.15


class ColourLayoutEmbedder:
    """The embedder without weights: what kind of picture a clip is, not what happens in it.

    It takes two drives along the same kind of road under the same sky for one. Where that is too much, give an
    embedder with weights.

    Args:
        num_frames: frames that are looked at, spread over the clip.
    """

    def __init__(self, *, num_frames: int = 8) -> None:
        if num_frames < 1:
            raise ValueError(f"num_frames is {num_frames}; it must be at least 1")
        self.num_frames = num_frames

    def frame_indices(self, num_frames: int) -> list[int]:
        """The numbers of the frames it wants of a clip of so many."""
        return sorted({int(number) for number in np.linspace(0, num_frames - 1, self.num_frames).round()})

    def embed(self, frames_THWC: Frames) -> NDArray[np.float32]:
        """A vector of length 1 at most, (448,): colours, profile and grain side by side, 384 + 48 + 16."""
        # Black bars are cut off: they would be the strongest profile of all.
        lit = frames_THWC.max(axis=-1).max(axis=0) > _BLACK
        rows, columns = np.flatnonzero(lit.mean(axis=1) > 0.05), np.flatnonzero(lit.mean(axis=0) > 0.05)
        inside = frames_THWC
        if len(rows) >= _ROWS and len(columns) >= _ROWS:
            inside = frames_THWC[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        rows_N3 = np.mean([_lab(frame, _COLUMNS, _ROWS).mean(axis=1) for frame in inside], axis=0)
        profile = _normalise((rows_N3 - rows_N3.mean(axis=0)).ravel(), _ROW_NOISE)
        grains = []  # the logarithm of the mean step between neighbours, in eight bands from above to below, (16,)
        for frame in inside:
            gray = cv2.resize(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), (256, 128), interpolation=cv2.INTER_AREA)
            luma = np.asarray(gray, dtype=np.float64)
            steps = (np.abs(np.diff(luma, axis=0, append=luma[-1:])), np.abs(np.diff(luma)))
            bands = [step.mean(axis=1).reshape(_BANDS, -1).mean(axis=1) for step in steps]
            grains.append(np.log1p(np.concatenate(bands)) - _GRAIN_MEAN)
        grain = _normalise(np.mean(grains, axis=0), _GRAIN_NOISE)
        # Square roots of the shares of 6 x 8 x 8 cells of Lab, (384,), each pixel spread over the eight nearest cells.
        # With roots the cosine of two histograms is their Bhattacharyya coefficient, so one big flat background does
        # not drown everything else.
        pixels = np.concatenate([_lab(frame, 48, 32).reshape(-1, 3) for frame in inside])
        (least, greatest), last = np.array(_RANGE).T, np.array(_BINS) - 1
        places = (np.clip(pixels, least, greatest).astype(np.float64) - least) / (greatest - least) * last
        low = np.floor(places).astype(np.int64)
        counts = np.zeros(int(np.prod(_BINS)))
        for corner in product((0, 1), repeat=3):
            share = np.abs(np.array(corner) - 1 + (places - low)).prod(axis=1)
            cell = np.minimum(low + np.array(corner), last)
            counts += np.bincount(np.ravel_multi_index(tuple(cell.T), _BINS), weights=share, minlength=len(counts))
        colours = np.asarray(np.sqrt(counts / counts.sum()), dtype=np.float32)
        parts = ((_COLOURS, colours), (_PROFILE, profile), (_GRAIN, grain))
        return np.concatenate([np.sqrt(share) * part for share, part in parts]).astype(np.float32)


def _lab(frame: Frames, width: int, height: int) -> NDArray[np.float32]:
    small = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32) / 255
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2LAB), dtype=np.float32)


def _normalise(values: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Length 1 where there is much to tell, next to 0 where there is only noise."""
    return np.asarray(values / np.sqrt(np.square(values).sum() + noise))
