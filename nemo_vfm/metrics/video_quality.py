"""Measures how near a reconstruction is to its original, a sample to training clips, and a block to its neighbours.

Fidelity is PSNR in decibels, and SSIM, of pixels in [-1, 1], which are cut off there. The training clip that looks most
like a sample tells whether a model draws or copies. Of seams only brightness counts: H.264 stores colour at half the
resolution, whose own blocks of 2 pixels lie on every border.
Shape letters: N clips, B batch, C channels, T frames, H height, W width.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

_K1, _K2, _SIDE, _SIGMA = 0.01, 0.03, 11, 1.5  # of the paper
_RANGE = 2.0
BEST_DB = 100.0  #: what PSNR says of equal videos, where the formula has no number
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601
_FLAT = 1e-3  # of 255: below it a jump is rounding


def psnr(made_BCTHW: Tensor, video_BCTHW: Tensor) -> Tensor:
    """10 log10(range^2 / mean squared error) over all pixels of a sample, (B,), at most `BEST_DB`."""
    error = (made_BCTHW.clamp(-1, 1) - video_BCTHW).double().square().flatten(1).mean(dim=1)
    return (10 * torch.log10(_RANGE**2 / error.clamp_min(1e-300))).clamp_max(BEST_DB).float()


def ssim(made_BCTHW: Tensor, video_BCTHW: Tensor) -> Tensor:
    """Structural similarity (Wang et al. 2004, equation 13), the mean over frames, colours and whole windows, (B,).

    Raises:
        ValueError: frames are smaller than its window of 11 x 11.
    """
    if min(made_BCTHW.shape[3:]) < _SIDE:
        raise ValueError(f"SSIM needs {_SIDE} x {_SIDE} pixels, but frames are {tuple(made_BCTHW.shape[3:])}")
    # The formula compares means by their product, which wants a black of 0: signed pixels gave 0.2 for a shift of 0.1.
    x, y = (part.flatten(0, 2)[:, None].double() / 2 + 0.5 for part in (made_BCTHW.clamp(-1, 1), video_BCTHW))
    # Under a Gaussian window, where the window is whole; in fp64, since variances are differences of like numbers.
    places = torch.arange(_SIDE, dtype=x.dtype, device=x.device) - _SIDE // 2
    window = torch.exp(-(places**2) / (2 * _SIGMA**2))
    window = window / window.sum()
    rows, columns = window[None, None, :, None], window[None, None, None, :]
    mean_x, mean_y, xx, yy, xy = (
        F.conv2d(F.conv2d(part_N1HW, rows), columns) for part_N1HW in (x, y, x * x, y * y, x * y)
    )
    var_x, var_y, covariance = xx - mean_x**2, yy - mean_y**2, xy - mean_x * mean_y
    c1, c2 = _K1**2, _K2**2
    alike = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    alike = alike / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
    return alike.reshape(len(made_BCTHW), -1).mean(dim=1).float()


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
        raise ValueError("there is no training clip to compare the sample with; give at least one")
    distance_N = np.sqrt(np.mean((np.stack(clips) - sample) ** 2, axis=1))
    best = int(distance_N.argmin())
    return best, float(distance_N[best])


def seam_ratio(videos: Iterable[NDArray[np.uint8]], block_px: int) -> float:
    """Mean difference in brightness of two pixels with a border between them over that of two without: 1 has no seams.

    Args:
        videos: (T, H, W, 3) each.
        block_px: side of a block; borders lie at its multiples.

    Raises:
        ValueError: a block of fewer than two pixels, or no picture is larger than one.
    """
    if block_px < 2:
        raise ValueError(f"block_px must be 2 or more, got {block_px}")
    total, count = np.zeros(2), np.zeros(2)  # elsewhere, at borders
    for video in videos:
        for axis in (1, 2):
            jump = np.abs(np.diff(video @ _LUMA, axis=axis)).mean(axis=(0, 3 - axis))
            border = (np.arange(len(jump)) + 1) % block_px == 0
            total += [jump[~border].sum(), jump[border].sum()]
            count += [(~border).sum(), border.sum()]
    if not count.all():
        raise ValueError(f"no picture is larger than one block of {block_px} px, so it has no seam; give larger ones")
    elsewhere, border_mean = total / count
    if elsewhere < _FLAT:
        return 1.0 if border_mean < _FLAT else float("inf")
    return float(border_mean / elsewhere)
