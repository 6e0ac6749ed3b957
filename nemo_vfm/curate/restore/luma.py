"""Computes the BT.601 luma, full range, of RGB frames.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

import cv2
import numpy as np
from numpy.typing import NDArray


def luma(frames_THWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(T, H, W)."""
    return np.stack([np.asarray(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), dtype=np.uint8) for frame in frames_THWC])
