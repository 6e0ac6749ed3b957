"""Finds lines of text that stand still in a few frames of one moment, without weights.

Shape letters: T frames, H height, W width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Luma

_EDGE = 40  # half of Sobel's step across an upright edge: letters of 20 luma steps and more
_STEADY = 0.6  # the weakest edge of the moment against the strongest: a fading title has 0.7, what moves has 0.1
_LETTERS = np.ones((3, 15), np.uint8)  # closes the gaps between letters of a 256 pixel picture
_BITS = np.ones((4, 9), np.uint8)  # opens what lone edges leave behind
_FEWEST_PX = 5  # height of a line
_FLAT = 0.005  # a picture with fewer edges than this share of its pixels says nothing of whether the camera moves


class Line(NamedTuple):
    """A line of writing, maybe: its box in pixels, and upright strokes that a row of it crosses."""

    left: int
    top: int
    width: int
    height: int
    strokes: float


class Edges(NamedTuple):
    """Upright edges of a few frames, 255 where there are some, (H, W)."""

    steady: NDArray[np.uint8]  #: those that all frames have at the same place
    all: NDArray[np.uint8]


def upright_edges(luma_THW: Sequence[Luma]) -> Edges:
    """Only upright edges count, since writing is made of them, and since a letterbox or the horizon is not."""
    steps = [cv2.Sobel(luma_HW, cv2.CV_16S, 1, 0) for luma_HW in luma_THW]
    least, most = np.asarray(steps[0]), np.asarray(steps[0])
    for step in steps[1:]:  # with their sign: in writing that moves, one letter's left edge meets another's right edge
        least, most = np.minimum(least, step), np.maximum(most, step)
    weakest = cv2.convertScaleAbs(np.maximum(np.maximum(least, -most), 0), alpha=0.5)
    strongest = cv2.convertScaleAbs(np.maximum(most, -least), alpha=0.5)
    steady = cv2.compare(weakest, cv2.convertScaleAbs(strongest, alpha=_STEADY), cv2.CMP_GT)
    steady = cv2.bitwise_and(steady, _above_edge(weakest))
    return Edges(np.asarray(steady, dtype=np.uint8), np.asarray(_above_edge(strongest), dtype=np.uint8))


def moving(edges: Edges, lines: Sequence[Line]) -> float:
    """0 to 1, the share of all edges outside lines that move; 1 in a flat picture, where nothing could."""
    steady, every = edges.steady.copy(), edges.all.copy()
    for left, top, width, height, _ in lines:
        steady[top : top + height, left : left + width] = 0
        every[top : top + height, left : left + width] = 0
    return 1 - min(1.0, cv2.countNonZero(steady) / max(cv2.countNonZero(every), _FLAT * every.size))


def steady_lines(steady_HW: NDArray[np.uint8]) -> list[Line]:
    """What looks like lines of writing among steady edges."""
    if not steady_HW.any():
        return []
    blobs = cv2.morphologyEx(cv2.morphologyEx(steady_HW, cv2.MORPH_CLOSE, _LETTERS), cv2.MORPH_OPEN, _BITS)
    found = cv2.connectedComponentsWithStats(blobs)[2][1:]  # the first is the background
    lines = []
    for left, top, width, height, area in found.tolist():
        line = steady_HW[top : top + height, left : left + width] > 0
        strokes = (np.count_nonzero(line[:, 1:] & ~line[:, :-1]) + np.count_nonzero(line[:, 0])) / height
        # Writing is long, not too high, and filled by strokes at the distances that letters have. Found on three real
        # films and their subtitled copies (2026-11): writing has 0.8 to 1.9 strokes a row over the length of its
        # height, where planks, stripes and leaves that look alike have fewer than 6 strokes or fill less.
        is_shaped = _FEWEST_PX <= height <= steady_HW.shape[0] / 4 and 1.5 <= width / height <= 40
        is_inked = area >= 0.6 * width * height and line.mean() >= 0.15
        if is_shaped and is_inked and 0.6 <= strokes * height / width <= 2.5:
            lines.append(Line(left, top, width, height, strokes))
    return lines


def _above_edge(image: cv2.typing.MatLike) -> cv2.typing.MatLike:
    return cv2.threshold(image, _EDGE, 255, cv2.THRESH_BINARY)[1]
