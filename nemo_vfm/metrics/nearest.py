"""Finds the training clip that looks most like a sample: does the model draw, or does it copy?

Shape letters: N clips, T frames, H height, W width.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def thumbnail(video_THWC: NDArray[np.uint8], *, num_frames: int = 4, side_px: int = 16) -> NDArray[np.float32]:
    """A few frames, evenly spread and box-averaged to `side_px` squared, as one vector in [0, 1].

    Raises:
        ValueError: the video is smaller than the thumbnail, or has no frames.
    """
    frames, height, width, _ = video_THWC.shape
    if frames < 1 or height < side_px or width < side_px:
        raise ValueError(f"a {frames} x {height} x {width} video is too small for {side_px} px thumbnails")
    chosen = np.linspace(0, frames - 1, num_frames).round().astype(int)
    picture = video_THWC[chosen].astype(np.float32) / 255
    for axis, length in ((1, height), (2, width)):
        edges = np.arange(side_px + 1) * length // side_px
        shape = [1] * picture.ndim
        shape[axis] = side_px
        picture = np.add.reduceat(picture, edges[:-1], axis=axis) / np.diff(edges).reshape(shape)
    vector: NDArray[np.float32] = picture.ravel().astype(np.float32)
    return vector


def nearest(sample: NDArray[np.float32], clips: Sequence[NDArray[np.float32]]) -> tuple[int, float]:
    """Index of the clip whose thumbnail is nearest to the sample's, and the root mean square pixel distance in [0, 1].

    Raises:
        ValueError: there is no clip to compare with.
    """
    if not clips:
        raise ValueError("no training clip to compare the sample with")
    distance_N = np.sqrt(np.mean((np.stack(clips) - sample) ** 2, axis=1))
    best = int(distance_N.argmin())
    return best, float(distance_N[best])
