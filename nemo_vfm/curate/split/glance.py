"""Reduces each frame to the few numbers by which a cut is seen: content score, brightness and a thumbnail.

Shape letters: H height, W width, C colours (RGB), D thumbnail cells times colours.
"""

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Frame

SAMPLES = 96 * 54  # pixels looked at; the cost grows with them
CELLS = (16, 9)  # of a thumbnail, across and down


class Glance:
    """What is seen of one frame.

    Args:
        content: PySceneDetect's content score: the mean of |change| of hue, saturation and value (each 0 to 255, hue
            0 to 179) from the frame before; 0 in the first frame. Hue is not taken as a circle, as there.
        sample_HWC: pixels picked from the frame on a grid.
    """

    __slots__ = ("_layout_D", "_length", "_thumbnail_D", "content", "sample_HWC")

    def __init__(self, content: float, sample_HWC: Frame) -> None:
        self.content, self.sample_HWC = content, sample_HWC
        self._thumbnail_D: NDArray[np.float32] | None = None
        self._layout_D: NDArray[np.float32] | None = None
        self._length = 0.0

    @property
    def brightness(self) -> float:
        """The mean of R, G and B, 0 to 255."""
        return sum(cv2.mean(self.sample_HWC)[:3]) / 3

    @property
    def thumbnail_D(self) -> NDArray[np.float32]:
        """16 by 9 cells of the whole frame, 0 to 255; too coarse to see small motion."""
        if self._thumbnail_D is None:
            small = cv2.resize(self.sample_HWC, CELLS, interpolation=cv2.INTER_AREA)
            self._thumbnail_D = small.astype(np.float32).ravel()
        return self._thumbnail_D

    @property
    def layout_D(self) -> NDArray[np.float32]:
        """Where which colours are, in any light: the thumbnail without its mean, of length 1; 0 where it is flat."""
        if self._layout_D is None:
            cells_NC = self.thumbnail_D.reshape(-1, 3)
            around_NC = cells_NC - cells_NC.mean(axis=0)  # cv2.reduce takes twenty times as long (2026-11)
            self._length = float(cv2.norm(around_NC))
            self._layout_D = around_NC.ravel() / np.float32(max(self._length, 1.0))
        return self._layout_D

    @property
    def contrast(self) -> float:
        """How far the thumbnail's cells are from their mean, root mean square, 0 to 128."""
        size: int = self.layout_D.size
        return self._length / math.sqrt(size)


class Eye:
    """Frames one after another; remembers only the frame before.

    Args:
        samples: pixels looked at; fewer are picked on a grid and not averaged, since a mean over a grid is an unbiased
            guess at the mean over all pixels, while averaging first would take out the noise that thresholds count on.
    """

    def __init__(self, samples: int = SAMPLES) -> None:
        self._samples = samples
        self._before_HWC: NDArray[np.uint8] | None = None

    def look(self, frame_HWC: Frame) -> Glance:
        """The frame's glance."""
        sample = pick(frame_HWC, self._samples)
        colours = np.asarray(cv2.cvtColor(sample, cv2.COLOR_RGB2HSV), dtype=np.uint8)
        before, self._before_HWC = self._before_HWC, colours
        if before is None or before.shape != colours.shape:
            return Glance(0.0, sample)
        return Glance(cv2.norm(colours, before, cv2.NORM_L1) / colours.size, sample)


def pick(frame_HWC: Frame, samples: int) -> Frame:
    """At most about `samples` of its pixels on a grid, in the frame's own proportions."""
    height, width = frame_HWC.shape[:2]
    ratio = (samples / (height * width)) ** 0.5
    if ratio >= 1:
        return np.ascontiguousarray(frame_HWC)
    size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
    return np.asarray(cv2.resize(frame_HWC, size, interpolation=cv2.INTER_NEAREST), dtype=np.uint8)
