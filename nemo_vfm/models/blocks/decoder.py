# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines one block of a causal language model: attention to earlier tokens, then a perceptron.

Rows of the fused projections are ordered by group of heads (its queries, its key, its value). So a tensor-parallel
split of the output features keeps whole groups together, and these modules read their numbers from the activations.
Shape letters: B batch, S tokens, D width, G groups (heads of keys and values), Q queries of a group, H heads = G Q,
E head dimension, R its rotated part.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.models.blocks.key_value import AttentionCache
from nemo_vfm.models.blocks.norm import LayerNorm1p, RMSNorm
from nemo_vfm.models.blocks.rope import rotate
from nemo_vfm.parallel.apply.shared_heads import own_queries, whole_groups
from nemo_vfm.parallel.context.causal_sharding import causal_attention
from nemo_vfm.parallel.engine.matmul_support import Linear

Activation = Literal["squared_relu", "swiglu", "gelu"]
NormKind = Literal["layernorm1p", "rmsnorm"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one block.

    Args:
        width: D.
        heads: H, of queries.
        groups: G, heads of keys and values; H / G queries share each.
        head_dim: E.
        mlp_hidden: between the two linears of the perceptron.
        activation: of the perceptron; swiglu has a gate.
        norm: layernorm1p has a bias and a gain that is kept as its difference from 1.
        eps: added to the variance in norms.
        qkv_bias: whether queries, keys and values have one.
        qk_norm: whether queries and keys of each head are normalised before they are rotated.
    """

    width: int
    heads: int
    groups: int
    head_dim: int
    mlp_hidden: int
    activation: Activation
    norm: NormKind
    eps: float
    qkv_bias: bool
    qk_norm: bool


@dataclass(frozen=True, slots=True)
class TextContext:
    """What every block is told besides its tokens.

    Args:
        cos: (1 or B, S, 1, R), of this rank's tokens.
        sin: the same, signed as `rotate` wants it.
        lengths: of the documents in a packed row, in tokens; None where a row is one document.
        cache: keys and values of what came before; None in training.
    """

    cos: Tensor
    sin: Tensor
    lengths: tuple[int, ...] | None = None
    cache: AttentionCache | None = None


def norm_of(sizes: Sizes) -> nn.Module:
    """The norm before each half of a block."""
    kind = RMSNorm if sizes.norm == "rmsnorm" else LayerNorm1p
    return kind(dim=sizes.width, eps=sizes.eps)


class CausalAttention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245): every token looks at itself and its past."""

    def __init__(self, sizes: Sizes, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim, self.queries = layer, sizes.head_dim, sizes.heads // sizes.groups
        self.qkv = Linear(sizes.width, (sizes.heads + 2 * sizes.groups) * sizes.head_dim, bias=sizes.qkv_bias)
        self.q_norm = RMSNorm(dim=sizes.head_dim, eps=sizes.eps) if sizes.qk_norm else None
        self.k_norm = RMSNorm(dim=sizes.head_dim, eps=sizes.eps) if sizes.qk_norm else None
        self.out = Linear(sizes.heads * sizes.head_dim, sizes.width, bias=False)

    def forward(self, x_BSD: Tensor, reading: TextContext) -> Tensor:
        """(B, S, D)."""
        qkv_BSF = whole_groups(self.qkv(x_BSD))
        parts_BSGPE = qkv_BSF.view(*qkv_BSF.shape[:2], -1, self.queries + 2, self.head_dim)
        q, k, v = torch.split(parts_BSGPE, [self.queries, 1, 1], dim=3)
        q, k, v = (part.flatten(2, 3) for part in (own_queries(q), k, v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (turned(x, reading.cos, reading.sin).transpose(1, 2) for x in (q, k))
        o_BHSE = self._attended(q, k, v.transpose(1, 2), reading)
        update: Tensor = self.out(o_BHSE.transpose(1, 2).flatten(2))
        return update

    def _attended(self, q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, reading: TextContext) -> Tensor:
        if reading.cache is not None:
            return reading.cache.attend(self.layer, q_BHSE, k_BGSE, v_BGSE)
        return causal_attention(q_BHSE, k_BGSE, v_BGSE, reading.lengths)


def turned(x_BSHE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotated in the first R of its E dimensions; cos and sin of `TextContext`."""
    rotated = cos.shape[-1]
    cos, sin = cos.to(x_BSHE.dtype), sin.to(x_BSHE.dtype)
    if rotated == x_BSHE.shape[-1]:
        return rotate(x_BSHE, cos, sin)
    return torch.cat([rotate(x_BSHE[..., :rotated], cos, sin), x_BSHE[..., rotated:]], dim=-1)


class Perceptron(nn.Module):
    """Two linears with an activation between; with a gate (Shazeer 2020, arXiv 2002.05202), three."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.activation = sizes.activation
        self.gate = Linear(sizes.width, sizes.mlp_hidden, bias=False) if sizes.activation == "swiglu" else None
        self.up = Linear(sizes.width, sizes.mlp_hidden, bias=False)
        self.down = Linear(sizes.mlp_hidden, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        hidden = self.up(x)
        hidden = ACTIVATIONS[self.activation](hidden) if self.gate is None else F.silu(self.gate(x)) * hidden
        y: Tensor = self.down(hidden)
        return y


def _squared_relu(x: Tensor) -> Tensor:
    """So et al. 2021 (arXiv 2109.08668): max(0, x)^2."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"squared_relu": _squared_relu, "gelu": F.gelu}


class DecoderBlock(nn.Module):
    """Attention and perceptron, each added to what comes in, each after a norm."""

    def __init__(self, sizes: Sizes, layer: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = norm_of(sizes), norm_of(sizes)
        self.attention, self.mlp = CausalAttention(sizes, layer), Perceptron(sizes)

    def forward(self, x_BSD: Tensor, reading: TextContext) -> Tensor:
        """(B, S, D)."""
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), reading)
        y: Tensor = x_BSD + self.mlp(self.mlp_norm(x_BSD))
        return y
