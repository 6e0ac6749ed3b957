"""Writes videos whose frames bear the video's number and their own as bars, and reads the bars."""

from pathlib import Path

import numpy as np

from nemo_vfm.data.video.encode import encode_mp4

BITS, BAR_PX = 16, 8
HEIGHT, WIDTH = 64, BITS * BAR_PX


def barcoded(video: int, frame: int) -> np.ndarray:
    """One frame, (H, W, C): the upper half bears the video, the lower one the frame."""
    picture = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    for half, number in enumerate((video, frame)):
        bars = [235 if number >> bit & 1 else 20 for bit in range(BITS)]
        picture[half * HEIGHT // 2 : (half + 1) * HEIGHT // 2] = np.repeat(bars, BAR_PX)[None, :, None]
    return picture


def write_barcoded(path: Path, video: int, num_frames: int, fps: float) -> Path:
    encode_mp4(path, [barcoded(video, frame) for frame in range(num_frames)], fps, preset="ultrafast")
    return path


def numbers_in(picture_HWC: np.ndarray) -> tuple[int, int]:
    """The video and the frame that a picture is."""
    bars = picture_HWC.reshape(2, HEIGHT // 2, BITS, BAR_PX, 3)[:, 4:-4, :, 2:-2].mean(axis=(1, 3, 4)) > 128
    video, frame = (int(sum(bool(bar) << bit for bit, bar in enumerate(row))) for row in bars)
    return video, frame
