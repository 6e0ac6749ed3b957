"""Computes how far each place of the picture moved, from one frame's motion vectors.

Shape letters: B blocks, H height and W width in pixels, R rows and C columns of cells of 8x8 pixels.
"""

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.record.footage import MotionVectors

CELL_PX = 8  # every block of H.264, MPEG-4 and MPEG-2 that FFmpeg exports is made of these
_COSMOS_SIZES = ((8, 8), (16, 16), (16, 8), (8, 16))  # in this order: where blocks overlap, the later one stays


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
