# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""One clip's bytes and a bucket in, its training windows as pixels of the bucket's shape out."""

from collections.abc import Iterator

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.bucket import Bucket
from nemo_vfm.data.decode import open_video
from nemo_vfm.data.transform import Pictures, image_to_bucket, resize_and_crop


def window_indices(num_frames: int, fps: float, bucket: Bucket, max_windows: int) -> list[list[int]]:
    """Source frames of each window: up to `max_windows`, spread from the first to the last frame of the clip.

    A single window lies in the middle. Windows may overlap but no two are the same.

    Raises:
        DataError: the clip is too short for one.
    """
    needed, stride = bucket.frames_needed(fps), bucket.stride(fps)
    slack = num_frames - needed
    if slack < 0:
        raise DataError(f"the clip has {num_frames} frames at {fps:g} fps, but one window needs {needed}")
    steps = max(1, max_windows - 1)
    starts = [slack // 2] if max_windows == 1 else sorted({step * slack // steps for step in range(max_windows)})
    offsets = [min(needed - 1, round(step * stride)) for step in range(bucket.num_frames)]
    return [[start + offset for offset in offsets] for start in starts]


def windows(media: bytes, *, is_image: bool, bucket: Bucket, max_windows: int) -> Iterator[tuple[Pictures, float]]:
    """Each window's frames (T, H, W, C) and its frames per second.

    Raises:
        DataError: the clip is damaged or too short.
    """
    if is_image:
        yield image_to_bucket(media, bucket)
        return
    with open_video(media) as reader:
        info = reader.info()
        for indices in window_indices(info.num_frames, info.fps, bucket, max_windows):
            frames_THWC = resize_and_crop(reader.read(indices), bucket.width, bucket.height)
            yield frames_THWC, info.fps / bucket.stride(info.fps)
