# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Applies self-attention among video tokens and cross-attention to text tokens.

Rows of the fused projections are ordered (head, role, dimension). So a tensor-parallel split of the output features
keeps whole heads together, and these modules read their number of heads from the activations.
Shape letters: B batch, S video tokens, L text tokens, W width, H heads, D head dimension.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from nemo_vfm.models.blocks.norm import RMSNorm
from nemo_vfm.models.blocks.packed_row import Row
from nemo_vfm.models.blocks.rope import rotate
from nemo_vfm.parallel.context.distributed_attention import attention, packed_attention, self_attention
from nemo_vfm.parallel.engine.matmul_support import Linear


class SelfProjections(nn.Module):
    """What tokens that look at each other are multiplied by; how far they look is its heirs' business."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.qkv = Linear(width, 3 * width, bias=False)
        self.q_norm = RMSNorm(dim=self.head_dim)
        self.k_norm = RMSNorm(dim=self.head_dim)
        self.out = Linear(width, width, bias=False)


class SelfAttention(SelfProjections):
    """Every video token looks at every other of its sample."""

    def forward(
        self, x_BSW: Tensor, cos_BS1D: Tensor, sin_BS1D: Tensor, segments: Sequence[int] | None = None
    ) -> Tensor:
        """(B, S, W).

        Args:
            segments: lengths of packed samples; None where each sample of the batch is one.
        """
        q, k, v_BSHD = self.qkv(x_BSW).unflatten(2, (-1, 3, self.head_dim)).unbind(3)
        q_BSHD = rotate(self.q_norm(q), cos_BS1D, sin_BS1D)
        k_BSHD = rotate(self.k_norm(k), cos_BS1D, sin_BS1D)
        o_BHSD = self_attention(q_BSHD.transpose(1, 2), k_BSHD.transpose(1, 2), v_BSHD.transpose(1, 2), segments)
        update: Tensor = self.out(o_BHSD.transpose(1, 2).flatten(2))
        return update


class CrossAttention(nn.Module):
    """Every video token looks at the real tokens of its sample's text."""

    def __init__(self, *, width: int, heads: int, text_dim: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.q = Linear(width, width, bias=False)
        self.kv = Linear(text_dim, 2 * width, bias=False)
        self.q_norm = RMSNorm(dim=self.head_dim)
        self.k_norm = RMSNorm(dim=self.head_dim)
        self.out = Linear(width, width, bias=False)

    def forward(self, x_BSW: Tensor, text_BLD: Tensor, mask_B11L: Tensor, row: Row | None = None) -> Tensor:
        """(B, S, W); the mask must leave every sample at least one token.

        Args:
            row: where packed samples lie in x, which is then one sequence; None where x has as many as the text.
        """
        q_BSHD = self.q_norm(self.q(x_BSW).unflatten(2, (-1, self.head_dim)))
        k, v_BLHD = self.kv(text_BLD).unflatten(2, (-1, 2, self.head_dim)).unbind(3)
        k_BLHD = self.k_norm(k)
        q, k, v = (x.transpose(1, 2) for x in (q_BSHD, k_BLHD, v_BLHD))
        o_BHSD = packed_attention(q, k, v, mask_B11L, row.spans()) if row else attention(q, k, v, mask_B11L)
        update: Tensor = self.out(o_BHSD.transpose(1, 2).flatten(2))
        return update
