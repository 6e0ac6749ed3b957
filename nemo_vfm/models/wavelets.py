"""Splits a signal along one dimension into means and half differences by one level of a wavelet, and joins them.

Haar's uses two neighbours, so that an error in one block of coefficients ends at the block's border. The biorthogonal
9/7 of Cohen, Daubechies and Feauveau (1992), that of JPEG 2000, overlaps. It is computed by the four lifting steps of
Daubechies and Sweldens (1998, section 7.7) and mirrors the signal at its ends.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

Wavelet = Literal["haar", "cdf97"]
WAVELETS: tuple[str, ...] = get_args(Wavelet)
_STEPS = (-1.586134342059924, -0.052980118572961, 0.882911075530934, 0.443506852043971)
# The scale that makes the 9/7 nearly orthonormal, over the one that makes means and half differences of it.
_SCALE = 1.149604398860241 / math.sqrt(2)


def split(x: Tensor, dim: int, wavelet: Wavelet) -> tuple[Tensor, Tensor]:
    """Means and half differences along `dim`, which must have an even length; each half as long."""
    even, odd = x.unflatten(dim, (-1, 2)).unbind(dim + 1)  # type: ignore[no-untyped-call]
    if wavelet == "haar":
        return (even + odd) / 2, (even - odd) / 2
    for a, b in (_STEPS[:2], _STEPS[2:]):
        odd = odd + a * (even + _following(even, dim))
        even = even + b * (odd + _preceding(odd, dim))
    return even * _SCALE, -odd / (2 * _SCALE)


def join(mean: Tensor, difference: Tensor, dim: int, wavelet: Wavelet) -> Tensor:
    """The inverse of `split`."""
    if wavelet == "haar":
        even, odd = mean + difference, mean - difference
    else:
        even, odd = mean / _SCALE, -difference * (2 * _SCALE)
        for a, b in (_STEPS[2:], _STEPS[:2]):
            even = even - b * (odd + _preceding(odd, dim))
            odd = odd - a * (even + _following(even, dim))
    return torch.stack([even, odd], dim=dim + 1).flatten(dim, dim + 1)


def _following(x: Tensor, dim: int) -> Tensor:
    """The right neighbour of each; the last one's mirrors it."""
    return torch.cat([x.narrow(dim, 1, x.shape[dim] - 1), x.narrow(dim, -1, 1)], dim)


def _preceding(x: Tensor, dim: int) -> Tensor:
    return torch.cat([x.narrow(dim, 0, 1), x.narrow(dim, 0, x.shape[dim] - 1)], dim)
