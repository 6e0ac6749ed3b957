"""Measures how much of the picture titles, subtitles and logos cover, and whether there are any.

Lines of writing are found by the upright strokes that stand still in a few frames of one moment, without weights, or by
the boxes that these frames share, by a text detector from a file.
Shape letters: T frames, H height, W width, C colours (RGB).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import sha256_file, sha256_text
from nemo_vfm.curate.record.footage import ClipFrames

_LONG_SIDE_PX = 640
_MULTIPLE_PX = 32  # of DBNet's input
_MEANS = (122.67891434, 116.66876762, 104.00698793)  # of blue, green and red: the order that DBNet was trained with
_SAME = 0.9  # overlap of a box with itself in the next frame, as in cosmos-curate
_STROKES_PER_HEIGHT = 2.0
_INSIDE, _SURE, _UNCLIP = 0.4, 0.7, 2.0  # probability of a pixel, mean of a box, and how far it grows
_EXPECTED = "A text detector such as DBNet is expected, in ONNX, with one probability for every pixel of its input"

Box = tuple[int, int, int, int]  # left, top, right, bottom
_STEP_S = 0.1
_STEPS = (0, 1, 3, 4)  # of a moment's frames: uneven, or what moves by the distance of its letters seems to stand still
_EDGE = 40  # half of Sobel's step across an upright edge: letters of 20 luma steps and more
_STEADY = 0.6  # the weakest edge of the moment against the strongest: a fading title has 0.7, what moves has 0.1
_LETTERS = np.ones((3, 15), np.uint8)  # closes the gaps between letters of a 256 pixel picture
_BITS = np.ones((4, 9), np.uint8)  # opens what lone edges leave behind
_FEWEST_PX = 5  # height of a line
_FLAT = 0.005  # a picture with fewer edges than this share of its pixels says nothing of whether the camera moves


class TextLine(NamedTuple):
    """A line of writing, maybe: its box in pixels, and upright strokes that a row of it crosses."""

    left: int
    top: int
    width: int
    height: int
    strokes: float


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
    ratio = _LONG_SIDE_PX / max(width, height)
    w, h = (max(1, round(side * ratio / _MULTIPLE_PX)) * _MULTIPLE_PX for side in (width, height))
    try:
        detector = _detector(weights)
        detector.setInput(cv2.dnn.blobFromImage(frame_HWC[..., ::-1].copy(), 1 / 255, (w, h), _MEANS))
        out = np.asarray(detector.forward(), dtype=np.float32)
    except cv2.error as error:
        raise UserError(f"{weights} cannot be run: {error.err}. {_EXPECTED}") from error
    if out.size != w * h:
        raise UserError(f"{weights} gives {out.shape} for an image of {w}x{h}. {_EXPECTED}")
    map_hw = out.reshape(h, w)  # how sure the detector is of writing, at its own size
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


@lru_cache(maxsize=1)
def _detector(weights: Path) -> cv2.dnn.Net:
    """Loaded once a process, since stages are sent to other processes without what they have loaded."""
    if not weights.is_file():
        raise UserError(f"there is no text detector at {weights}; give the path of an ONNX file, or leave weights out")
    return cv2.dnn.readNetFromONNX(str(weights))


class TextOverlay:
    """Writing that was laid over the picture: it stands still while the rest moves.

    `text.strokes` is the evidence, `text.overlay` is 1 where that is at least `strokes`, else 0. `text.area`,
    `text.bottom` and `text.corner` are the parts of the picture, of its lower third and of its corners (10 % of each
    side) that writing covers, each at the moment with most of it.

    A sign before a still camera stands still, too, so evidence counts less the fewer of the other edges move. So
    writing over a picture that does not move at all is not seen, nor are logos of fewer than about four letters.

    Args:
        strokes: upright strokes that a row of a line of writing crosses, times the share of other edges that move,
            from which on it is an overlay. The title in the Sintel trailer has 11, a subtitle 20; what looks most
            like writing in four real clips without any has 3.4 (2026-11).
        max_moments: moments that are looked at, at most; otherwise there is one a second.
        weights: path of a text detector (DBNet) in ONNX that finds the boxes in place of edges; a box counts if it is
            the same, to an overlap of 0.9, in all frames of a moment. Each box then counts as 2 strokes for every time
            that it is longer than high. None needs no weights.
    """

    def __init__(self, *, strokes: float = 6.0, max_moments: int = 24, weights: Path | None = None) -> None:
        if strokes <= 0 or max_moments < 1:
            raise ValueError(f"strokes {strokes} must be above 0 and max_moments {max_moments} at least 1")
        self.strokes, self.max_moments, self.weights = strokes, max_moments, weights

    def columns(self) -> Sequence[str]:
        return ("text.overlay", "text.strokes", "text.area", "text.bottom", "text.corner")

    def fingerprint(self) -> str:
        """Of the settings, and of the bytes of the weights wherever they lie."""
        weights = "none" if self.weights is None else sha256_file(self.weights)
        return sha256_text(f"{self.strokes} {self.max_moments} {weights}")

    def measure(self, footage: ClipFrames) -> Mapping[str, float]:
        """The scores of one clip; of an image, what writing covers."""
        last = footage.num_frames - 1
        step = max(1, min(round(_STEP_S * footage.fps), last // _STEPS[-1]))
        count = max(1, min(self.max_moments, round(footage.duration_s)))
        room = max(0, last - step * _STEPS[-1])
        starts = [(2 * k + 1) * room // (2 * count) for k in range(count)]
        # Of the frames of each moment; a short clip repeats some.
        numbers = [[min(last, start + step * k) for k in _STEPS] for start in starts]
        height, width = footage.luma(numbers[0][:1]).shape[1:]
        if min(height, width) < 16:
            raise ValueError(f"the picture is {width}x{height}, too small for text; at least 16 are needed")
        moments = [self._look(footage, few) for few in numbers]
        scores = {"text.area": 0.0, "text.bottom": 0.0, "text.corner": 0.0}
        for lines, _ in moments:
            mask_HW = np.zeros((height, width), bool)
            for line in lines:
                mask_HW[line.top : line.top + line.height, line.left : line.left + line.width] = True
            shares = float(mask_HW.mean()), float(mask_HW[height * 2 // 3 :].mean()), corner_share(mask_HW)
            scores = {name: max(scores[name], share) for name, share in zip(scores, shares, strict=True)}
        if footage.is_image:
            return scores
        evidence = max((share * line.strokes for lines, share in moments for line in lines), default=0.0)
        return {"text.overlay": float(evidence >= self.strokes), "text.strokes": float(evidence)} | scores

    def _look(self, footage: ClipFrames, numbers: Sequence[int]) -> tuple[list[TextLine], float]:
        """The writing of a moment, and the share of other edges that move; 1 in a flat picture, where nothing could."""
        # Upright edges only, since writing is made of them, and since a letterbox or the horizon is not.
        steps = [cv2.Sobel(luma_HW, cv2.CV_16S, 1, 0) for luma_HW in footage.luma(numbers)]
        # With their sign: in writing that moves, one letter's left edge meets another's right edge.
        least, most = np.minimum.reduce(steps), np.maximum.reduce(steps)
        weakest = cv2.convertScaleAbs(np.maximum(np.maximum(least, -most), 0), alpha=0.5)
        strongest = cv2.convertScaleAbs(np.maximum(most, -least), alpha=0.5)
        stands = cv2.compare(weakest, cv2.convertScaleAbs(strongest, alpha=_STEADY), cv2.CMP_GT)
        edges, all_edges = (cv2.threshold(one, _EDGE, 255, cv2.THRESH_BINARY)[1] for one in (weakest, strongest))
        steady_HW, every_HW = np.asarray(cv2.bitwise_and(stands, edges), np.uint8), np.asarray(all_edges, np.uint8)
        if self.weights is None:
            lines = steady_lines(steady_HW)
        else:
            frames_THWC = footage.frames(numbers)  # a line's box stays where it is through all of them
            kept = _boxes(self.weights, frames_THWC[0])
            for frame_HWC in frames_THWC[1:]:
                here = _boxes(self.weights, frame_HWC)
                kept = [box for box in kept if any(overlap(box, other) >= _SAME for other in here)]
            lines = [TextLine(x, y, r - x, b - y, _STROKES_PER_HEIGHT * (r - x) / (b - y)) for x, y, r, b in kept]
        for left, top, width, height, _ in lines:
            steady_HW[top : top + height, left : left + width] = 0
            every_HW[top : top + height, left : left + width] = 0
        still = cv2.countNonZero(steady_HW) / max(cv2.countNonZero(every_HW), _FLAT * every_HW.size)
        return lines, 1 - min(1.0, still)


def steady_lines(steady_HW: NDArray[np.uint8]) -> list[TextLine]:
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
            lines.append(TextLine(left, top, width, height, strokes))
    return lines


def corner_share(mask_HW: NDArray[np.bool_]) -> float:
    """The part of the corners, 10 % of each side, that a mask covers."""
    y, x = (max(1, side // 10) for side in mask_HW.shape[:2])
    corners = [
        mask_HW[rows, columns] for rows in (slice(y), slice(-y, None)) for columns in (slice(x), slice(-x, None))
    ]
    return float(np.mean(corners))
