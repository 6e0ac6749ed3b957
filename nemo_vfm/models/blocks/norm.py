# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Normalises vectors to unit scale.

Shape letters: D the dimension that is normalised.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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


def rms_normalised(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x over its root mean square along the last dimension; the mean is taken in fp32."""
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps).to(x.dtype)
