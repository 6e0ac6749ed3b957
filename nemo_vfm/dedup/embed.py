# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Frames in, one unit vector out that needs no weights: perceptual hashes and a colour histogram side by side.

Shape letters: T frames, H height, W width, C colours (RGB), D the vector's width.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

_HASH_SIDE = 8  # 8x8 low frequencies a frame, 64 bits
_DCT_SIDE_PX = 32
_BINS = 4  # per colour: 64 histogram cells


def perceptual_hash(frame_HWC: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The signs (-1 or +1) of 64 low frequencies of the luma around their median, (64,)."""
    gray = cv2.cvtColor(frame_HWC, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(gray, (_DCT_SIDE_PX, _DCT_SIDE_PX), interpolation=cv2.INTER_AREA)
    low = cv2.dct(small.astype(np.float32))[:_HASH_SIDE, :_HASH_SIDE].ravel()
    # The constant term is always far above the median: it would be one bit that never says anything.
    low[0] = 0.0
    return np.where(low > np.median(low), 1.0, -1.0).astype(np.float32)


def colour_histogram(frames_THWC: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Square roots of the shares of 4x4x4 RGB cells over all frames, a unit vector (64,).

    With roots the cosine of two histograms is their Bhattacharyya coefficient, so one big flat
    background does not drown everything else.
    """
    cells = (frames_THWC.reshape(-1, 3) // (256 // _BINS)).astype(np.int64)
    index = (cells[:, 0] * _BINS + cells[:, 1]) * _BINS + cells[:, 2]
    counts = np.bincount(index, minlength=_BINS**3)
    shares: NDArray[np.float32] = np.sqrt(counts / counts.sum(), dtype=np.float32)
    return shares


def embed(frames_THWC: NDArray[np.uint8], *, hash_weight: float = 0.7) -> NDArray[np.float32]:
    """A unit vector (T * 64 + 64,) whose cosine is hash_weight * hash agreement + the rest * colour agreement.

    Hash agreement is 1 - 2 * (share of bits that differ): 1 for the same picture, about 0 for unrelated ones.
    Two clips can be compared only if T is equal.
    """
    if not 0 < hash_weight < 1:
        raise ValueError(f"hash_weight is {hash_weight}, but it must lie between 0 and 1")
    hashes = np.concatenate([perceptual_hash(frame) for frame in frames_THWC])
    hashes *= np.float32((hash_weight / hashes.size) ** 0.5)
    return np.concatenate([hashes, colour_histogram(frames_THWC) * np.float32((1 - hash_weight) ** 0.5)])
