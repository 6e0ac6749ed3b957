"""Finds channel logos and watermarks: what stays at its pixels while the shots of a file change.

Shape letters: T frames, H height, W width.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from math import ceil

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.bounds import require_between
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.shared_edges import EdgeField, Mark, different_scenes, edge_field, find_marks
from nemo_vfm.curate.score.text_overlay import corner_share

_FRAMES = 16
_SIDE_PX = 256
_FEWEST_SCENES, _MOST_SCENES, _MOST_SHOTS = 3, 16, 48
_FEWEST_PX, _CHANCE_PX = 60, 480  # edge pixels of a mark; and what is there by chance, times the number of scenes


class Logo:
    """Compares the shots of a file: what at least three different scenes have at the same pixels was laid over them.

    Each shot is remembered by the mean of 16 frames, 30 to 60 kB as text. `logo.likeness` is the part of the file's
    marks that the clip has, `logo.overlay` is 1 where that is at least `likeness`, else 0. `logo.area` and
    `logo.corner` are the parts of the picture and of its corners (10 % of each side) that their boxes cover.

    Shots whose edges lie at the same places are one scene: a camera that stands still says nothing. A file of fewer
    than three scenes has no score, nor has an image. Marks of less than 60 to 160 pixels of edges in a picture of 256
    lines are not seen, nor those that fewer than about seven of ten scenes have, or that touch the border.

    Args:
        likeness: 0 to 1, from which on a clip has the file's logo.
    """

    def __init__(self, *, likeness: float = 0.3) -> None:
        require_between(0.05, 1.0, likeness=likeness)
        self.likeness = likeness

    def columns(self) -> Sequence[str]:
        """The names of the four scores."""
        return ("logo.overlay", "logo.likeness", "logo.area", "logo.corner")

    def remember(self, footage: ClipFrames) -> str:
        """The clip's mean picture, as text."""
        mean_HW = np.zeros(footage.luma([0]).shape[1:], np.float32)
        numbers = footage.evenly(_FRAMES)
        for luma_HW in footage.luma(numbers):
            cv2.accumulate(luma_HW, mean_HW)
        return _as_text(_small((mean_HW / len(numbers)).round().astype(np.uint8)))

    def agree(self, memories: Sequence[str]) -> list[Mapping[str, float]]:
        """The scores of each clip of a file; none where the file shows fewer than three scenes."""
        some = memories[:: ceil(len(memories) / _MOST_SHOTS) or 1]
        scenes = different_scenes([edge_field(_as_picture(text)) for text in some], _MOST_SCENES)
        if len(scenes) < _FEWEST_SCENES:
            return [{} for _ in memories]
        marks = find_marks(scenes, max(_FEWEST_PX, _CHANCE_PX / len(scenes)))
        return [self._scores(marks, edge_field(_as_picture(text)) if marks else None) for text in memories]

    def _scores(self, marks: Sequence[Mark], field: EdgeField | None) -> Mapping[str, float]:
        found = [] if field is None else [(mark.likeness(field), mark) for mark in marks]
        best = max((likeness for likeness, _ in found), default=0.0)
        area, corner = _covered([mark for likeness, mark in found if likeness >= self.likeness])
        return {
            "logo.overlay": float(best >= self.likeness),
            "logo.likeness": max(0.0, best),
            "logo.area": area,
            "logo.corner": corner,
        }


def _covered(marks: Sequence[Mark]) -> tuple[float, float]:
    """The parts of the picture and of its corners that boxes cover."""
    if not marks:
        return 0.0, 0.0
    mask_HW = np.zeros_like(marks[0].edges_HW)
    for mark in marks:
        mask_HW[mark.top : mark.bottom, mark.left : mark.right] = True
    return float(mask_HW.mean()), corner_share(mask_HW)


def _small(picture_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    ratio = _SIDE_PX / min(picture_HW.shape)
    if ratio >= 1:
        return picture_HW
    size = round(picture_HW.shape[1] * ratio), round(picture_HW.shape[0] * ratio)
    return np.asarray(cv2.resize(picture_HW, size, interpolation=cv2.INTER_AREA), np.uint8)


def _as_text(picture_HW: NDArray[np.uint8]) -> str:
    """Height, width and base64; differences of neighbours take four fifths of the room."""
    differences_HW = np.diff(picture_HW, axis=0, prepend=np.zeros_like(picture_HW[:1]))
    packed = base64.b64encode(zlib.compress(differences_HW.tobytes(), 3)).decode()
    return f"{picture_HW.shape[0]} {picture_HW.shape[1]} {packed}"


def _as_picture(text: str) -> NDArray[np.uint8]:
    """What `_as_text` was given.

    Raises:
        ValueError: it is damaged.
    """
    try:
        height, width, packed = text.split(" ")
        size = int(height), int(width)
        data = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), size[0] * size[1])
        return np.cumsum(np.frombuffer(data, np.uint8).reshape(size), axis=0, dtype=np.uint8)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the stored result of a clip is not a picture: {error}") from error
