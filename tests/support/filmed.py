# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A video file in, one clip of all its small frames and motion vectors out, as stages see it."""

from pathlib import Path

import av
import cv2
import numpy as np

from nemo_vfm.curate.footage import Footage, MotionVectors

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


def filmed(path: Path, side_px: int = 256) -> Footage:
    """The whole file, with a short side of at most `side_px`."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.options = {"flags2": "+export_mvs"}
        decoded = [(_small(frame, side_px), _vectors(frame)) for frame in container.decode(stream)]
        fps = float(stream.average_rate)
    frames, vectors = zip(*decoded, strict=True)
    has_any = any(len(one.blocks_B) for one in vectors)
    return Footage(
        len(frames),
        fps,
        lambda numbers: np.stack([frames[number] for number in numbers]),
        (lambda numbers: [vectors[number] for number in numbers]) if has_any else None,
    )


def _small(frame: av.VideoFrame, side_px: int) -> np.ndarray:
    picture = frame.to_ndarray(format="rgb24")
    ratio = min(1.0, side_px / min(frame.width, frame.height))
    size = (round(frame.width * ratio), round(frame.height * ratio))
    return np.ascontiguousarray(picture) if ratio == 1 else cv2.resize(picture, size, interpolation=cv2.INTER_AREA)


def _vectors(frame: av.VideoFrame) -> MotionVectors:
    found = frame.side_data.get("MOTION_VECTORS")
    return MotionVectors(frame.width, frame.height, blocks() if found is None else found.to_ndarray())
