"""Defines one block of Wan, and the embeddings of its text, noise level and image.

Shape letters: B batch, N noise levels, L text tokens, I image tokens, D width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.models.blocks.attention import CrossAttention, SelfAttention
from nemo_vfm.models.blocks.dit_block import BlockContext
from nemo_vfm.models.blocks.mlp import MLP
from nemo_vfm.models.blocks.modulation import TableModulation, gated, modulate
from nemo_vfm.models.blocks.norm import LayerNorm
from nemo_vfm.parallel.layers.linear import Linear

#: Slices of the conditioning: the output's vector, then shift, scale and gate of attention and of the MLP.
LAST, INSIDE = (0, 1), (1, 7)


class WanBlock(nn.Module):
    """Self-attention, cross-attention and MLP; the first and last are modulated and gated (`TableModulation`).

    Queries and keys are normalised across all heads. Every linear has a bias.
    """

    def __init__(self, *, width: int, heads: int, mlp_hidden: int, image: bool) -> None:
        super().__init__()
        self.norm = LayerNorm()
        self.modulation = TableModulation(width=width, rows=6, vectors=INSIDE)
        self.self_attention = SelfAttention(width=width, heads=heads, bias=True, norm_over="heads")
        self.text_norm = nn.LayerNorm(width, eps=1e-6)
        self.cross_attention = CrossAttention(
            width=width, heads=heads, text_dim=width, bias=True, norm_over="heads", image=image
        )
        self.mlp = MLP(width=width, hidden=mlp_hidden, bias=True)

    def forward(self, x_BSD: Tensor, context: BlockContext) -> Tensor:
        """The residual stream (B, S, D) after this block."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = context.levels.by_token(
            self.modulation(context.conditioning_NA)
        )
        seen = modulate(self.norm(x_BSD), shift, scale)
        x = gated(x_BSD, gate, self.self_attention(seen, *context.rope, context.segments))
        x = x + self.cross_attention(
            self.text_norm(x), context.text_BLD, context.mask_B11L, context.row, context.image_BLD
        )
        return gated(x, mlp_gate, self.mlp(modulate(self.norm(x), mlp_shift, mlp_scale)))


class TextEmbedding(nn.Module):
    """Projects text tokens to the width of video tokens: two linears with a GELU between."""

    def __init__(self, *, text_dim: int, width: int) -> None:
        super().__init__()
        self.up, self.down = Linear(text_dim, width), Linear(width, width)

    def forward(self, text_BLD: Tensor) -> Tensor:
        """(B, L, D)."""
        y: Tensor = self.down(F.gelu(self.up(text_BLD), approximate="tanh"))
        return y


class ImageEmbedding(nn.Module):
    """Projects image features to the width of video tokens, with a norm before and after.

    Args:
        image_dim: width of a feature.
        width: D.
        positions: number of learned positions, for models that take a first and a last image; None has none.
    """

    def __init__(self, *, image_dim: int, width: int, positions: int | None = None) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(positions, image_dim)) if positions else None
        self.in_norm, self.out_norm = nn.LayerNorm(image_dim), nn.LayerNorm(width)
        self.up, self.down = Linear(image_dim, image_dim), Linear(image_dim, width)

    def forward(self, image_BIC: Tensor) -> Tensor:
        """(B, I, D)."""
        x = image_BIC if self.positions is None else image_BIC + self.positions
        y: Tensor = self.out_norm(self.down(F.gelu(self.up(self.in_norm(x)))))
        return y


class WanConditioning(nn.Module):
    """Maps the noise-level embedding to the conditioning: itself, then six vectors that all blocks share."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.proj = Linear(width, 6 * width)

    def forward(self, vector_ND: Tensor) -> Tensor:
        """(N, 7 D)."""
        return torch.cat([vector_ND, self.proj(F.silu(vector_ND))], 1)
