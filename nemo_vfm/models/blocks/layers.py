"""Defines what several models share: norms, rotations, modulations, a perceptron, and how first weights are drawn.

A modulation computes a block's shifts, scales and gates from a conditioning vector: adaLN-zero (Peebles and Xie 2023,
section 3.2), and its low-rank form by Cosmos and arXiv 2503.12964 (AdaLN-LoRA), since a full linear of D x 9 D in every
block is a third of a model's parameters.
Shape letters: B batch, S tokens, D width, N noise levels, A width of the conditioning, H heads, E head dimension.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.parallel.apply.local_shard import local
from nemo_vfm.parallel.layers.linear import Linear


class LayerNorm(nn.Module):
    """Layer normalisation without weights: in a modulated block the shift and scale come from the conditioning."""

    def __init__(self, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Zero mean and unit variance over the last dimension."""
        return F.layer_norm(x, x.shape[-1:], eps=self.eps)


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
        self.total: Callable[[Tensor], Tensor] | None = None

    def forward(self, x_BSHD: Tensor) -> Tensor:
        """x with unit root mean square over heads and head dimension, times the weight, in the dtype of x."""
        square_BS11 = x_BSHD.float().square().sum((-2, -1), keepdim=True)
        if self.total is not None:
            square_BS11 = self.total(square_BS11)
        normal = x_BSHD * torch.rsqrt(square_BS11 / self.dim + self.eps).to(x_BSHD.dtype)
        weight = self.weight if type(self.weight) is nn.Parameter else local(self.weight)
        return normal * weight.view(x_BSHD.shape[-2:]).to(x_BSHD.dtype)


def rms_normalised(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x over its root mean square along the last dimension; the mean is taken in fp32."""
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps).to(x.dtype)


def rotate(x_BSHD: Tensor, cos_BS1D: Tensor, sin_BS1D: Tensor) -> Tensor:
    """Rotate dimension i against i + D/2 by the table's angles."""
    swapped = x_BSHD.roll(x_BSHD.shape[-1] // 2, dims=-1)
    return torch.addcmul(x_BSHD * cos_BS1D, swapped, sin_BS1D)


def rotate_first(x_BSHE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first R of E dimensions by cos and sin of `TextContext`."""
    rotated = cos.shape[-1]
    cos, sin = cos.to(x_BSHE.dtype), sin.to(x_BSHE.dtype)
    if rotated == x_BSHE.shape[-1]:
        return rotate(x_BSHE, cos, sin)
    return torch.cat([rotate(x_BSHE[..., :rotated], cos, sin), x_BSHE[..., rotated:]], dim=-1)


Gelu = Literal["tanh", "exact"]


class MLP(nn.Module):
    """The position-wise perceptron of a block; GELU in its tanh form, or exactly, some 1e-4 apart."""

    def __init__(
        self, *, width: int, hidden: int, out: int | None = None, gelu: Gelu = "tanh", bias: bool = False
    ) -> None:  # fmt: skip
        super().__init__()
        self.approximate = "tanh" if gelu == "tanh" else "none"
        self.up = Linear(width, hidden, bias=bias)
        self.down = Linear(hidden, out or width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x), approximate=self.approximate))
        return y


class Modulation(nn.Module):
    """One zero-initialised linear to `num_chunks` vectors, so that every block begins as the identity.

    The caller applies SiLU to the conditioning vector once for all blocks.
    """

    def __init__(self, *, width: int, num_chunks: int) -> None:
        super().__init__()
        self.num_chunks = num_chunks
        self.proj = Linear(width, num_chunks * width, bias=False)

    def forward(self, conditioning_BD: Tensor) -> tuple[Tensor, ...]:
        """`num_chunks` tensors (B, 1, D)."""
        chunks: tuple[Tensor, ...] = self.proj(conditioning_BD).unsqueeze(1).chunk(self.num_chunks, dim=2)
        return chunks


class LowRankModulation(nn.Module):
    """For each part of a block (shift, scale, gate) = U V SiLU(e) + a, with V: D -> rank and U: rank -> 3 D.

    e is the noise level as a vector and a, of 3 D, is the same for all blocks; the caller gives SiLU(e) and a side by
    side. U begins at zero, as a does, so that every block begins as the identity.

    Args:
        width: D.
        rank: of the product.
        parts: parts of a block, each with its own V and U.
        chunks_each: vectors a part takes: 3, or 2 (shift and scale) for the output, which takes the first two of a.
    """

    def __init__(self, *, width: int, rank: int, parts: int, chunks_each: int = 3) -> None:
        super().__init__()
        self.width, self.chunks_each = width, chunks_each
        self.down = nn.ModuleList(Linear(width, rank, bias=False) for _ in range(parts))
        self.up = nn.ModuleList(Linear(rank, chunks_each * width, bias=False) for _ in range(parts))

    def forward(self, conditioning_BD: Tensor) -> tuple[Tensor, ...]:
        """`parts * chunks_each` tensors (B, 1, D), for a conditioning of width 4 D."""
        vector_BD = conditioning_BD[..., : self.width]
        shared = conditioning_BD[..., self.width : (1 + self.chunks_each) * self.width]
        chunks: list[Tensor] = []
        for down, up in zip(self.down, self.up, strict=True):
            chunks += (up(down(vector_BD)) + shared).unsqueeze(1).chunk(self.chunks_each, dim=2)
        return tuple(chunks)


class TableModulation(nn.Module):
    """Adds a learned table to vectors that all blocks share, as Wan does: chunk c is table_c + vector_c.

    Args:
        width: D.
        rows: rows of the table; a single vector is added to every row.
        vectors: the slice of conditioning vectors to use: (first, last + 1).
    """

    def __init__(self, *, width: int, rows: int, vectors: tuple[int, int]) -> None:
        super().__init__()
        self.width, self.vectors = width, vectors
        self.table = nn.Parameter(torch.zeros(rows, width))

    def forward(self, conditioning_NA: Tensor) -> tuple[Tensor, ...]:
        """A tensor (N, 1, D) for each row of the table."""
        vectors = conditioning_NA.view(len(conditioning_NA), -1, self.width)[:, slice(*self.vectors)]
        chunks: tuple[Tensor, ...] = (vectors + self.table).unsqueeze(2).unbind(1)
        return chunks


def block_modulation(*, width: int, rank: int | None, parts: int) -> Modulation | LowRankModulation:
    """A shift, a scale and a gate for each part of a block; through a rank, or without one."""
    if rank is None:
        return Modulation(width=width, num_chunks=3 * parts)
    return LowRankModulation(width=width, rank=rank, parts=parts)


def modulate(x_BSD: Tensor, shift_B1D: Tensor, scale_B1D: Tensor) -> Tensor:
    """x (1 + scale) + shift, in one pass over x."""
    return torch.addcmul(shift_B1D, x_BSD, 1 + scale_B1D)


def gated_residual(residual_BSD: Tensor, gate_B1D: Tensor, update_BSD: Tensor) -> Tensor:
    """residual + gate update, in one pass."""
    return torch.addcmul(residual_BSD, gate_B1D, update_BSD)


@torch.no_grad()
def draw_weights(model: nn.Module, first: Callable[[str, torch.Size, int], Tensor], seed: int) -> None:
    """Draw every parameter by (its name, its shape, seed), so that no layout of devices changes it; nothing on meta."""
    for name, parameter in model.named_parameters():
        if not parameter.is_meta:
            parameter.copy_(first(name, parameter.shape, seed))
