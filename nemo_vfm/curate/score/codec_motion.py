"""Measures how much moves, overall and at least, by the encoder's motion vectors or else by optical flow.

Shape letters: B blocks, H height and W width in pixels, R rows and C columns of what a source of motion can tell apart,
which for vectors are cells of 8x8 pixels.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.log import warn_once
from nemo_vfm.curate.record.footage import ClipFrames, MotionVectors
from nemo_vfm.curate.score.motion import flow_lengths

CELL_PX = 8  # every block of H.264, MPEG-4 and MPEG-2 that FFmpeg exports is made of these
_COSMOS_SIZES = ((8, 8), (16, 16), (16, 8), (8, 16))  # in this order: where blocks overlap, the later one stays
Grid = NDArray[np.float32]  # (R, C)
_FLOW_SIDE_PX = 160
_FURTHEST = 4  # frames back that the reference of a vector is looked for: x264 puts up to 3 B frames in a row by itself
_COSMOS_SIDE_PX = 256


def cell_lengths(vectors: MotionVectors) -> NDArray[np.float32]:
    """Pixels each cell moved since an earlier frame, (R, C); NaN where no vector says so."""
    past_B = vectors.blocks_B[vectors.blocks_B["source"] < 0]
    rows, columns = -(-vectors.height // CELL_PX), -(-vectors.width // CELL_PX)
    cells_RC = np.full((rows + 2, columns + 2), np.nan, np.float32)  # coded blocks may reach beyond the picture
    lengths_B = _lengths(past_B)
    tops_B = (past_B["dst_y"].astype(int) - past_B["h"] // 2) // CELL_PX
    lefts_B = (past_B["dst_x"].astype(int) - past_B["w"] // 2) // CELL_PX
    for down in range(int(past_B["h"].max(initial=0)) // CELL_PX):
        for right in range(int(past_B["w"].max(initial=0)) // CELL_PX):
            inside_B = (past_B["h"] > down * CELL_PX) & (past_B["w"] > right * CELL_PX)
            r, c = tops_B[inside_B] + down, lefts_B[inside_B] + right
            cells_RC[np.clip(r, -1, rows), np.clip(c, -1, columns)] = lengths_B[inside_B]
    return cells_RC[:rows, :columns]


def cell_areas(width: int, height: int) -> NDArray[np.float32]:
    """Pixels of the picture in each cell, (R, C): those at the right and lower edge may be cut."""
    across = np.minimum(CELL_PX, width - np.arange(0, width, CELL_PX))
    return np.outer(np.minimum(CELL_PX, height - np.arange(0, height, CELL_PX)), across).astype(np.float32)


def cosmos_lengths(vectors: MotionVectors) -> NDArray[np.float32]:
    """Pixels each pixel moved as cosmos-curate 1.4 paints it, (H, W); 0 where no block of its four sizes lies.

    A block that reaches over the edge is pressed into the last row or column; blocks of both directions are painted.
    """
    pixels_HW = np.zeros((vectors.height, vectors.width), np.float32)
    for width, height in _COSMOS_SIZES:
        blocks_B = vectors.blocks_B[(vectors.blocks_B["w"] == width) & (vectors.blocks_B["h"] == height)]
        x, y = blocks_B["dst_x"].astype(int) - width // 2, blocks_B["dst_y"].astype(int) - height // 2
        lefts, tops = (
            np.clip((x, x + width - 1), 0, vectors.width - 1),
            np.clip((y, y + height - 1), 0, vectors.height - 1),
        )
        for length, left, right, top, bottom in zip(_lengths(blocks_B), *lefts, *tops, strict=True):
            pixels_HW[top : bottom + 1, left : right + 1] = length
    return pixels_HW


def _lengths(blocks_B: NDArray[np.void]) -> NDArray[np.float32]:
    steps = np.hypot(blocks_B["motion_x"], blocks_B["motion_y"])
    return np.asarray(steps / np.maximum(blocks_B["motion_scale"], 1), dtype=np.float32)


class CodecMotion:
    """`motion.global_mean` and `motion.patch_min`, in (width + height) per frame: 0.001 is 1.3 pixels of 854x480.

    An encoder has already searched for motion, and its vectors cost nothing but decoding. They exist in H.264, MPEG-4
    and MPEG-2; for other codecs, and videos without predicted frames, dense flow is measured instead, and `motion.from`
    says which it was. What is averaged are the parts of frames that a vector to an earlier frame covers, its length
    divided by how many frames back that is. A frame without vectors is still where it repeats the one before, and tells
    nothing where it does not. `motion.patch_min` is the least of the parts that `patches` makes.

    `compat: cosmos` gives the numbers of cosmos-curate 1.4, for thresholds that were found with it (0.00098 and
    0.000001): frames at 2 fps from the first half; vectors of both directions, not divided; frames without vectors left
    out; parts that are samples 256 pixels apart, not means. Of a cut-out clip its encoder makes other vectors.

    Args:
        num_frames: frames whose vectors are read, spread over the clip.
        patches: parts along the short side; along the long side there are as many as make them nearly square.
        compat: None for the above, cosmos for the numbers of cosmos-curate.
    """

    def __init__(self, *, num_frames: int = 16, patches: int = 3, compat: Literal["cosmos"] | None = None) -> None:
        if num_frames < 1 or patches < 1:
            raise ValueError(f"num_frames {num_frames} and patches {patches} must be at least 1")
        self.num_frames, self.patches, self.compat = num_frames, patches, compat

    def columns(self) -> Sequence[str]:
        """Two numbers, and where they come from."""
        return ("motion.global_mean", "motion.patch_min", "motion.from")

    def labels(self) -> Mapping[str, Sequence[str]]:
        """The source of the numbers."""
        return {"motion.from": ("vectors", "flow")}

    def reads_vectors(self) -> bool:
        """It does."""
        return True

    def measure(self, footage: ClipFrames) -> Mapping[str, float | str]:
        """The scores of one clip; an image has none."""
        if footage.is_image:
            return {}
        scores = self._of_cosmos(footage) if self.compat == "cosmos" else self._of_vectors(footage)
        source = "flow" if scores is None else "vectors"
        if scores is None:
            (width, height), flows = flow_lengths(footage, num_pairs=self.num_frames, side_px=_FLOW_SIDE_PX)
            moved_HW = np.zeros((height, width), np.float32)
            for lengths_HW in flows:
                if lengths_HW is not None:
                    moved_HW += lengths_HW
            scores = self._numbers(moved_HW, np.full_like(moved_HW, len(flows)), width, height)
        return {"motion.global_mean": scores[0], "motion.patch_min": scores[1], "motion.from": source}

    def _of_vectors(self, footage: ClipFrames) -> tuple[float, float] | None:
        """Both numbers; None where vectors tell nothing of most frames."""
        pairs = footage.pairs(self.num_frames)
        numbers = sorted({after for before, after in zip(pairs[::2], pairs[1::2], strict=True) if after > before})
        # The frames and those that they may refer to.
        near = sorted({max(0, number - back) for number in numbers for back in range(_FURTHEST)})
        vectors = dict(zip(near, _vectors(footage, near), strict=False))
        if not vectors:
            return None
        grids = [grid for number in numbers if (grid := _per_frame(footage, number, vectors)) is not None]
        if 2 * len(grids) < len(numbers):
            return None
        shape = vectors[numbers[0]]
        moved_TRC = np.stack(grids)
        seen_TRC = cell_areas(shape.width, shape.height) * ~np.isnan(moved_TRC)
        moved_RC, seen_RC = (np.nan_to_num(moved_TRC) * seen_TRC).sum(axis=0), seen_TRC.sum(axis=0)
        return self._numbers(moved_RC, seen_RC, shape.width, shape.height)

    def _numbers(self, moved_RC: Grid, seen_RC: Grid, width: int, height: int) -> tuple[float, float]:
        """The mean over everything that was seen, and over the part with the least."""
        short = min(width, height)
        size = max(1, round(self.patches * width / short)), max(1, round(self.patches * height / short))
        size = min(size[0], moved_RC.shape[1]), min(size[1], moved_RC.shape[0])
        moved, seen = (cv2.resize(grid, size, interpolation=cv2.INTER_AREA) for grid in (moved_RC, seen_RC))
        parts = moved[seen > 0] / seen[seen > 0]
        return float(moved_RC.sum() / seen_RC.sum() / (width + height)), float(parts.min() / (width + height))

    @staticmethod
    def _of_cosmos(footage: ClipFrames) -> tuple[float, float] | None:
        """Both numbers as cosmos-curate has them; None where there are no vectors."""
        sampled = range(0, footage.num_frames, max(1, round(footage.fps / 2)))[1:]
        wanted = max(10, round(2 * 0.5 * (int(footage.duration_s) or 30)))
        found: list[MotionVectors] = []
        for start in range(0, len(sampled), wanted):
            found += [v for v in _vectors(footage, sampled[start : start + wanted]) if len(v.blocks_B)]
            if len(found) >= wanted:
                break
        if not found:
            return None
        found = found[:wanted]
        width, height = found[0].width, found[0].height
        if min(width, height) < _COSMOS_SIDE_PX:
            raise ValueError(
                f"the picture is {width}x{height}, but cosmos-curate gives no value for sides below "
                f"{_COSMOS_SIDE_PX} pixels; leave compat out for such videos"
            )
        mean_HW = np.zeros((height, width), np.float32)
        for vectors in found:
            mean_HW += cosmos_lengths(vectors) / len(found)
        parts = cv2.resize(mean_HW, None, fx=1 / _COSMOS_SIDE_PX, fy=1 / _COSMOS_SIDE_PX)
        return float(mean_HW.mean() / (width + height)), float(parts.min() / (width + height))


def _vectors(footage: ClipFrames, numbers: Sequence[int]) -> list[MotionVectors]:
    """Those of the frames; none, and that is said once, where the codec has none."""
    vectors = footage.motion_vectors(numbers) if numbers else []
    if vectors is None:
        warn_once(
            "A video has no motion vectors, as with every codec but H.264, MPEG-4 and MPEG-2; optical flow is measured "
            "instead, and motion.from says where."
        )
    return vectors or []


def _per_frame(footage: ClipFrames, number: int, vectors: Mapping[int, MotionVectors]) -> Grid | None:
    """Pixels a frame that each cell of a frame moves, NaN where unknown; None where nothing is known."""
    here = vectors[number]
    if not len(here.blocks_B):  # coded by itself, or left out by the encoder because nothing changed
        before, after = footage.luma([number - 1, number])
        return np.zeros_like(cell_areas(here.width, here.height)) if np.array_equal(before, after) else None
    # How far the last frame lies back that is no B frame, which is what vectors mostly refer to. FFmpeg tells only the
    # direction. Undivided, P frames behind B frames move 1.9 times as far as flow says, divided 0.8 times
    # (crush_027.mp4, 2026-11); in a film without B frames it is 0.97 (flipping_a_pancake.mkv).
    frames_back = _FURTHEST
    for back in range(1, _FURTHEST):
        if number - back < 0 or not (vectors[number - back].blocks_B["source"] > 0).any():
            frames_back = back
            break
    moved_RC = cell_lengths(here) / np.float32(frames_back)
    return None if np.isnan(moved_RC).all() else moved_RC
