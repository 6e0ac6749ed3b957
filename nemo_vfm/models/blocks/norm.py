"""Normalises vectors to unit scale.

Shape letters: D the dimension that is normalised.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.parallel.apply.local_shard import local


class LayerNorm(nn.Module):
    """Layer normalisation without weights: in a modulated block the shift and scale come from the conditioning."""

    def __init__(self, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Zero mean and unit variance over the last dimension."""
        return F.layer_norm(x, x.shape[-1:], eps=self.eps)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a learned weight (Zhang and Sennrich 2019, equation 4).

    Used on the queries and keys of each head apart, so that tensor parallel needs no communication for it and
    attention logits stay bounded.
    """

    def __init__(self, *, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Unit root mean square over the last dimension, times the weight, in the dtype of x."""
        return rms_normalised(x, self.eps) * self.weight.to(x.dtype)


class RMSNorm1p(nn.Module):
    """`RMSNorm` whose weight is kept as its difference from 1, and computed in fp32 to the end, as Gemma does."""

    def __init__(self, *, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Unit root mean square over the last dimension, times 1 + weight, in the dtype of x."""
        return (rms_normalised(x.float(), self.eps) * (1 + self.weight.float())).to(x.dtype)


class RMSNormAcrossHeads(nn.Module):
    """RMS norm across all heads of a query or key, with one weight per feature, as in Wan.

    Under tensor parallelism a rank has some of the heads: `total` then sums over ranks, and the weight is this rank's
    shard (`parallel.apply.apply_parallelism`).
    """

    def __init__(self, *, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.total: Callable[[Tensor], Tensor] = _as_it_is

    def forward(self, x_BSHD: Tensor) -> Tensor:
        """x with unit root mean square over heads and head dimension, times the weight, in the dtype of x."""
        square_BS11 = self.total(x_BSHD.float().square().sum((-2, -1), keepdim=True))
        normal = x_BSHD * torch.rsqrt(square_BS11 / self.dim + self.eps).to(x_BSHD.dtype)
        return normal * local(self.weight).view(x_BSHD.shape[-2:]).to(x_BSHD.dtype)


class LayerNorm1p(nn.Module):
    """Layer normalisation with a bias, whose gain is kept as its difference from 1, so that weight decay pulls to 1."""

    def __init__(self, *, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Zero mean and unit variance over the last dimension, times 1 + weight, plus bias, in the dtype of x."""
        normal = F.layer_norm(x.float(), x.shape[-1:], 1 + self.weight.float(), self.bias.float(), self.eps)
        return normal.to(x.dtype)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def rms_normalised(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x over its root mean square along the last dimension; the mean is taken in fp32."""
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps).to(x.dtype)
