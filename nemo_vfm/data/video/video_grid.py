"""Writes several videos of one size as a picture of frame strips and as one tiled video, for people to look at.

Shape letters: B videos, T frames, H height, W width, C colour channels.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nemo_vfm.core.storage.files import atomic_path
from nemo_vfm.data.video.encode import encode_mp4

Pixels = NDArray[np.uint8]
_GAP_PX = 2
_GREY = 128


def write_grid(stem: Path, video_BTHWC: Pixels, fps: float) -> None:
    """Write `<stem>.png`, a film strip a video, and `<stem>.mp4`, all of them playing side by side."""
    with atomic_path(stem.with_suffix(".png")) as path:
        Image.fromarray(film_strips(video_BTHWC)).save(path)
    with atomic_path(stem.with_suffix(".mp4")) as path:
        encode_mp4(path, tile(video_BTHWC), fps)


def film_strips(video_BTHWC: Pixels, num_shown: int = 4) -> Pixels:
    """Each video as a row of `num_shown` frames spread evenly, first and last included; rows in two columns or more."""
    times = np.linspace(0, video_BTHWC.shape[1] - 1, min(num_shown, video_BTHWC.shape[1])).round().astype(int)
    strips = [np.concatenate(list(video_THWC[times]), axis=1) for video_THWC in video_BTHWC]
    return _mosaic(np.stack(strips), num_columns=max(1, math.ceil(math.sqrt(len(strips) / len(times)))))


def tile(video_BTHWC: Pixels) -> Pixels:
    """All videos in one, (T, H', W', C), in a grid about as wide as high."""
    num_columns = math.ceil(math.sqrt(len(video_BTHWC)))
    return np.stack([_mosaic(frame_BHWC, num_columns) for frame_BHWC in video_BTHWC.swapaxes(0, 1)])


def _mosaic(images_BHWC: Pixels, num_columns: int) -> Pixels:
    padded = np.pad(images_BHWC, ((0, 0), (_GAP_PX,) * 2, (_GAP_PX,) * 2, (0, 0)), constant_values=_GREY)
    missing = -len(padded) % num_columns
    padded = np.concatenate([padded, np.full((missing, *padded.shape[1:]), _GREY, np.uint8)])
    rows = padded.reshape(-1, num_columns, *padded.shape[1:])
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows], axis=0)
