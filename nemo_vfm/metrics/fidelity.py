"""Measures how similar a reconstruction is to its original: PSNR in decibels, and SSIM.

Shape letters: B batch, C channels, T frames, H height, W width. Pixels are in [-1, 1], and are cut off there.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

_RANGE = 2.0
_K1, _K2, _SIDE, _SIGMA = 0.01, 0.03, 11, 1.5  # of the paper
BEST_DB = 100.0  #: what PSNR says of equal videos, where the formula has no number


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
    mean_x, mean_y, xx, yy, xy = (_blurred(part) for part in (x, y, x * x, y * y, x * y))
    var_x, var_y, covariance = xx - mean_x**2, yy - mean_y**2, xy - mean_x * mean_y
    c1, c2 = _K1**2, _K2**2
    alike = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    alike = alike / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
    return alike.reshape(len(made_BCTHW), -1).mean(dim=1).float()


def _blurred(x_N1HW: Tensor) -> Tensor:
    """Under a Gaussian window, where the window is whole; in fp64, since variances are differences of like numbers."""
    places = torch.arange(_SIDE, dtype=x_N1HW.dtype, device=x_N1HW.device) - _SIDE // 2
    window = torch.exp(-(places**2) / (2 * _SIGMA**2))
    window = window / window.sum()
    return F.conv2d(F.conv2d(x_N1HW, window[None, None, :, None]), window[None, None, None, :])
