"""Reads a video file as one clip of all its small frames and motion vectors, as stages see it."""

from pathlib import Path

import numpy as np

from nemo_vfm.curate.examine.frame_stream import Walk
from nemo_vfm.curate.record.footage import ClipFrames

_BLOCK = np.dtype([
    ("source", "<i4"), ("w", "u1"), ("h", "u1"), ("src_x", "<i2"), ("src_y", "<i2"), ("dst_x", "<i2"),
    ("dst_y", "<i2"), ("flags", "<u8"), ("motion_x", "<i4"), ("motion_y", "<i4"), ("motion_scale", "<u2"),
], align=True)  # fmt: skip


def blocks(*rows: dict[str, int]) -> np.ndarray:
    """Motion vectors by hand; what is not said is 0."""
    made = np.zeros(len(rows), _BLOCK)
    for place, row in enumerate(rows):
        for name, value in row.items():
            made[place][name] = value
    return made


def filmed(path: Path, side_px: int = 256) -> ClipFrames:
    """The whole file, with a short side of at most `side_px`."""
    with Walk(path, side_px=side_px, vectors=True, max_held_bytes=1 << 30) as walk:
        for _ in walk.frames():
            pass
        return walk.footage((0, walk.num_walked))
