"""Finds boxes of text that all frames of one moment share, with a text detector from a file.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import UserError
from nemo_vfm.curate.score.strokes import Line

_LONG_SIDE_PX = 640
_MULTIPLE_PX = 32  # of DBNet's input
_MEANS = (122.67891434, 116.66876762, 104.00698793)  # of blue, green and red: the order that DBNet was trained with
_SAME = 0.9  # overlap of a box with itself in the next frame, as in cosmos-curate
_STROKES_PER_HEIGHT = 2.0
_INSIDE, _SURE, _UNCLIP = 0.4, 0.7, 2.0  # probability of a pixel, mean of a box, and how far it grows
_EXPECTED = "A text detector such as DBNet is expected, in ONNX, with one probability for every pixel of its input"

Box = tuple[int, int, int, int]  # left, top, right, bottom


def detect_lines(weights: Path, frames_THWC: NDArray[np.uint8]) -> list[Line]:
    """Boxes that stay where they are through all frames.

    Raises:
        UserError: the file is no detector that OpenCV can run.
    """
    kept = _boxes(weights, frames_THWC[0])
    for frame_HWC in frames_THWC[1:]:
        here = _boxes(weights, frame_HWC)
        kept = [box for box in kept if any(overlap(box, other) >= _SAME for other in here)]
    return [Line(x, y, r - x, b - y, _STROKES_PER_HEIGHT * (r - x) / (b - y)) for x, y, r, b in kept]


def overlap(one: Box, other: Box) -> float:
    """Area of what both cover over the area of what either covers."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    both = max(0, width) * max(0, height)
    areas = [(right - left) * (bottom - top) for left, top, right, bottom in (one, other)]
    return both / (sum(areas) - both)


def _boxes(weights: Path, frame_HWC: NDArray[np.uint8]) -> list[Box]:
    """Where writing is, in pixels of the frame; DBNet's own way from a map of probabilities (arXiv 1911.08947, 3.4)."""
    height, width = frame_HWC.shape[:2]
    map_hw = _probabilities(weights, frame_HWC)
    h, w = map_hw.shape
    found = cv2.connectedComponentsWithStats((map_hw > _INSIDE).astype(np.uint8))
    boxes = []
    for label, (x, y, across, down, area) in list(enumerate(found[2].tolist()))[1:]:
        if map_hw[y : y + down, x : x + across][found[1][y : y + down, x : x + across] == label].mean() < _SURE:
            continue
        grown = area * _UNCLIP / (2 * (across + down))  # the map is trained on writing that was shrunk
        sides = np.array([x - grown, y - grown, x + across + grown, y + down + grown]) / (w, h, w, h)
        left, top, right, bottom = (np.clip(sides, 0, 1) * (width, height, width, height)).round().astype(int).tolist()
        if right > left and bottom > top:
            boxes.append((left, top, right, bottom))
    return boxes


def _probabilities(weights: Path, frame_HWC: NDArray[np.uint8]) -> NDArray[np.float32]:
    """How sure the detector is of writing, (h, w) at its own size."""
    height, width = frame_HWC.shape[:2]
    ratio = _LONG_SIDE_PX / max(width, height)
    size = [max(1, round(side * ratio / _MULTIPLE_PX)) * _MULTIPLE_PX for side in (width, height)]
    try:
        detector = _detector(weights)
        detector.setInput(cv2.dnn.blobFromImage(frame_HWC[..., ::-1].copy(), 1 / 255, size, _MEANS))
        out = np.asarray(detector.forward(), dtype=np.float32)
    except cv2.error as error:
        raise UserError(f"{weights} cannot be run: {error.err}. {_EXPECTED}") from error
    if out.size != size[0] * size[1]:
        raise UserError(f"{weights} gives {out.shape} for an image of {size[0]}x{size[1]}. {_EXPECTED}")
    return out.reshape(size[1], size[0])


@lru_cache(maxsize=1)
def _detector(weights: Path) -> cv2.dnn.Net:
    """Loaded once a process, since stages are sent to other processes without what they have loaded."""
    if not weights.is_file():
        raise UserError(f"there is no text detector at {weights}; give the path of an ONNX file, or leave weights out")
    return cv2.dnn.readNetFromONNX(str(weights))
