"""Finds channel logos and watermarks: what stays at its pixels while the shots of a file change.

Marks are found after the watermark detection of Dekel et al., "On the Effectiveness of Visible Watermarks" (CVPR 2017),
which takes the median gradient of many pictures. Films have few shots, so here the edges of any two scenes must agree
on the mean.

Shape letters: T frames, H height, W width, D = 2 directions (across, down), N scenes.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.types.media_types import Luma
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.text_overlay import corner_share

EdgeField = NDArray[np.float32]  # (D, H, W), lengths below 1

_FAINT = 3.0  # grey levels a pixel; fainter steps count less, so that noise and coding say little
_BLOCKS = 4  # a side: the picture is compared in 16 blocks
_BLANK = 0.01  # mean squared edge of a block that says nothing
_FEWEST_BLOCKS = 4
_UNLIKE = 0.3  # correlation of two blocks that differ
# Of one scene before a still camera, cut apart, up to half of the blocks differ; of 819 pairs of different scenes all
# but two have 0.62 and more (2026-11).
_OTHER_SCENE = 0.6
# Mean agreement of two scenes at a pixel, 0 by chance and 1 at most: two of three scenes make 0.33, however alike, and
# 7 of 10 shots with a mark 0.47. Of 300 films of three scenes two had an alarm at 0.3, none at 0.36 or 0.42 (2026-11).
_AGREE = 0.4
# Part of a row or column that agrees where there is a bar's edge; of two shots, and of all, some of which are dark.
_PAIR_LINE, _LINE = 0.5, 0.25
_NEAR_PX = (9, 7)  # across and down: letters and parts of a mark lie as close
_LARGEST = 0.25  # of the picture: more is a scene that stays
_FRAMES = 16
_SIDE_PX = 256
_FEWEST_SCENES, _MAX_SCENES, _MAX_SHOTS = 3, 16, 48
_FEWEST_PX, _CHANCE_PX = 60, 480  # edge pixels of a mark; and what is there by chance, times the number of scenes


@dataclass(frozen=True, slots=True)
class StaticMark:
    """Something that stays at its pixels over different scenes."""

    left: int  #: of its box, in pixels, as are the following; `right` and `bottom` are exclusive
    top: int
    right: int
    bottom: int
    edges_HW: NDArray[np.bool_]  #: its edges' pixels, over the whole picture
    direction_DHW: EdgeField  #: which way its edges go, of length 1; 0 elsewhere


def edge_field(picture_HW: Luma) -> EdgeField:
    """Steps of brightness across and down; a clear one has length 1, whatever its height."""
    steps_DHW = np.stack([cv2.Sobel(picture_HW, cv2.CV_32F, *way, scale=1 / 8) for way in ((1, 0), (0, 1))])
    return np.asarray(steps_DHW / (np.linalg.norm(steps_DHW, axis=0) + _FAINT), np.float32)


def find_marks(scenes: Sequence[EdgeField], fewest_px: float) -> list[StaticMark]:
    """What different scenes have in common, but for bars, what reaches the border, and all where that is too much.

    Args:
        scenes: at least two.
        fewest_px: edge pixels a mark must have; a third of them across and down each, since it is no line.
    """
    number, sum_DHW = len(scenes), np.sum(scenes, axis=0)
    alone_HW = sum(np.square(field).sum(axis=0) for field in scenes)
    agree_HW = (np.square(sum_DHW).sum(axis=0) - alone_HW) / (number * (number - 1))
    edges_HW = agree_HW >= _AGREE
    edges_HW &= ~_lines(edges_HW, _LINE)
    direction_DHW = sum_DHW / np.maximum(np.linalg.norm(sum_DHW, axis=0), 1e-6)
    near_HW = cv2.dilate(edges_HW.astype(np.uint8), np.ones(_NEAR_PX[::-1], np.uint8))
    count, labels_HW = cv2.connectedComponents(near_HW)
    height, width = edges_HW.shape
    marks = []
    for label in range(1, count):
        own_HW = edges_HW & (labels_HW == label)
        rows, columns = (np.flatnonzero(own_HW.any(axis=axis)) for axis in (1, 0))
        left, top, right, bottom = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
        own_DHW = np.asarray(direction_DHW * own_HW, np.float32)
        across = int((np.abs(own_DHW[0]) > np.abs(own_DHW[1])).sum())
        down = int(own_HW.sum()) - across
        is_inside = min(left, top, width - right, height - bottom) >= 2
        if is_inside and min(across + down, 3 * min(across, down)) >= fewest_px:
            marks.append(StaticMark(left, top, right, bottom, own_HW, own_DHW))
    area = sum((mark.right - mark.left) * (mark.bottom - mark.top) for mark in marks)
    return marks if area <= _LARGEST * edges_HW.size else []


def _differ(one_DHW: EdgeField, other_DHW: EdgeField) -> bool:
    """Whether two shots show other things at the same places: in most blocks, since both may have the same logo."""
    alike_HW = (one_DHW * other_DHW).sum(axis=0)
    beside_HW = ~_lines(alike_HW >= _AGREE, _PAIR_LINE)
    both_BB = _in_blocks((np.square(one_DHW) + np.square(other_DHW)).sum(axis=0) / 2 * beside_HW)
    alike_BB = _in_blocks(alike_HW * beside_HW)
    told_BB = both_BB >= _BLANK
    unlike = int((alike_BB[told_BB] < _UNLIKE * both_BB[told_BB]).sum())
    return unlike >= max(_FEWEST_BLOCKS, _OTHER_SCENE * int(told_BB.sum()))


def _in_blocks(values_HW: NDArray[np.float32]) -> NDArray[np.float32]:
    means = cv2.resize(values_HW, (_BLOCKS, _BLOCKS), interpolation=cv2.INTER_AREA)
    return np.asarray(means, np.float32)


def _lines(edges_HW: NDArray[np.bool_], least: float) -> NDArray[np.bool_]:
    """Rows and columns of which so much is edges, as where bars end, and their blur."""
    rows_H, columns_W = (np.convolve(edges_HW.mean(axis=axis) >= least, np.ones(5), "same") > 0 for axis in (1, 0))
    return np.asarray(rows_H[:, None] | columns_W)


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
        return ("logo.overlay", "logo.likeness", "logo.area", "logo.corner")

    def remember(self, footage: ClipFrames) -> str:
        """The clip's mean picture, as text."""
        mean_HW = np.zeros(footage.luma([0]).shape[1:], np.float32)
        numbers = footage.evenly(_FRAMES)
        for luma_HW in footage.luma(numbers):
            cv2.accumulate(luma_HW, mean_HW)
        # Height, width and base64; differences of neighbours take four fifths of the room.
        picture_HW = (mean_HW / len(numbers)).round().astype(np.uint8)
        if (ratio := _SIDE_PX / min(picture_HW.shape)) < 1:
            size = round(picture_HW.shape[1] * ratio), round(picture_HW.shape[0] * ratio)
            picture_HW = np.asarray(cv2.resize(picture_HW, size, interpolation=cv2.INTER_AREA), np.uint8)
        differences_HW = np.diff(picture_HW, axis=0, prepend=np.zeros_like(picture_HW[:1]))
        packed = base64.b64encode(zlib.compress(differences_HW.tobytes(), 3)).decode()
        return f"{picture_HW.shape[0]} {picture_HW.shape[1]} {packed}"

    def agree(self, memories: Sequence[str]) -> list[Mapping[str, float]]:
        """The scores of each clip of a file; none where the file shows fewer than three scenes."""
        some = memories[:: ceil(len(memories) / _MAX_SHOTS) or 1]
        fields = [edge_field(_as_picture(text)) for text in some]
        # One shot of each scene: those that differ from all before them; a picture without edges differs from none.
        scenes: list[EdgeField] = []
        for field in fields:
            has_edges = np.count_nonzero(_in_blocks(np.square(field).sum(axis=0)) >= _BLANK) >= _FEWEST_BLOCKS
            if len(scenes) < _MAX_SCENES and has_edges and all(_differ(field, other) for other in scenes):
                scenes.append(field)
        if len(scenes) < _FEWEST_SCENES:
            return [{} for _ in memories]
        marks = find_marks(scenes, max(_FEWEST_PX, _CHANCE_PX / len(scenes)))
        scores: list[Mapping[str, float]] = []
        for text in memories:
            best = area = corner = 0.0
            if marks:
                field_DHW, mask_HW = edge_field(_as_picture(text)), np.zeros_like(marks[0].edges_HW)
                for mark in marks:  # how much of it this shot has: about 0 where there is nothing of it, and at most 1
                    likeness = float((field_DHW * mark.direction_DHW).sum() / mark.edges_HW.sum())
                    best = max(best, likeness)
                    if likeness >= self.likeness:
                        mask_HW[mark.top : mark.bottom, mark.left : mark.right] = True
                area, corner = float(mask_HW.mean()), corner_share(mask_HW)
            scores.append({"logo.overlay": float(best >= self.likeness), "logo.likeness": best, "logo.area": area,
                           "logo.corner": corner})  # fmt: skip
        return scores


def _as_picture(text: str) -> NDArray[np.uint8]:
    """What `remember` gave as text."""
    try:
        height, width, packed = text.split(" ")
        size = int(height), int(width)
        data = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), size[0] * size[1])
        return np.cumsum(np.frombuffer(data, np.uint8).reshape(size), axis=0, dtype=np.uint8)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the stored result of a clip is not a picture: {error}") from error
