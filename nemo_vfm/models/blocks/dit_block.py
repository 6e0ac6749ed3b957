"""Defines one block of a DiT, its attentions, and the inputs that every block receives besides the tokens.

Rows of the fused projections are ordered (head, role, dimension). So a tensor-parallel split of the output features
keeps whole heads together, and these modules read their number of heads from the activations.
Shape letters: B batch, S video tokens, L text tokens, D width of a token, N noise levels, A width of the conditioning;
in attention W width, H heads, D head dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nemo_vfm.models.blocks.layers import (
    MLP,
    Gelu,
    LayerNorm,
    RMSNorm,
    RMSNormAcrossHeads,
    block_modulation,
    gated,
    modulate,
    rotate,
)
from nemo_vfm.models.blocks.video_tokens import Grid, NoiseLevels, Row
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.layers.parallel_attention import attention, self_attention


@dataclass(frozen=True, slots=True)
class BlockContext:
    """Inputs shared by all blocks, beside the tokens."""

    grid: Grid  #: tokens along time, height and width; of packed samples, which have none in common, one line
    levels: NoiseLevels  #: the noise level of each sample, or of each of its latent frames
    fps_B: Tensor  #: its frames per second
    #: the modulation vector of each noise level (and text), after its SiLU; low-rank modulation appends its shared
    #: part
    conditioning_NA: Tensor
    rope: tuple[Tensor, Tensor]  #: rotations of the tokens that attention sees here
    text_BLD: Tensor  #: text, hidden tokens zeroed
    mask_B11L: Tensor  #: which of its tokens may be seen
    image_BLD: Tensor | None = None  #: image tokens for cross-attention; None without an image
    #: learned positions of this rank's tokens, added before every block; None where there are none
    places_SD: Tensor | None = None
    row: Row | None = None  #: where packed samples lie; None where a batch has one shape

    @property
    def segments(self) -> tuple[int, ...] | None:
        """Lengths of what attends to itself alone, see `self_attention`."""
        return None if self.row is None else self.row.segments

    def placed(self, x_BSD: Tensor) -> Tensor:
        """Tokens with their learned positions."""
        return x_BSD if self.places_SD is None else x_BSD + self.places_SD


Across = Literal["head", "heads"]


def query_norm(over: Across, width: int, heads: int, eps: float) -> RMSNorm | RMSNormAcrossHeads:
    """The norm of queries or keys: per head, or across all heads, which sums over tensor ranks."""
    return RMSNorm(dim=width // heads, eps=eps) if over == "head" else RMSNormAcrossHeads(dim=width, eps=eps)


class SelfProjections(nn.Module):
    """The projections and norms of self-attention; subclasses decide which tokens attend to which."""

    def __init__(
        self, *, width: int, heads: int, bias: bool = False, norm_over: Across = "head", norm_eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.qkv = Linear(width, 3 * width, bias=bias)
        self.q_norm, self.k_norm = (query_norm(norm_over, width, heads, norm_eps) for _ in range(2))
        self.out = Linear(width, width, bias=bias)

    def fused_rows(self) -> dict[str, dict[str, int]]:
        """See `HasFusedLinears`."""
        return {"qkv": dict.fromkeys("qkv", self.head_dim)}


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
    """Video tokens attend to their sample's text and, if it has one, its image; the two outputs are added."""

    def __init__(
        self, *, width: int, heads: int, text_dim: int, bias: bool = False, norm_over: Across = "head",
        norm_eps: float = 1e-6, image: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head_dim = width // heads
        self.q = Linear(width, width, bias=bias)
        self.kv = Linear(text_dim, 2 * width, bias=bias)
        self.q_norm, self.k_norm = (query_norm(norm_over, width, heads, norm_eps) for _ in range(2))
        self.image_kv = Linear(text_dim, 2 * width, bias=bias) if image else None
        self.image_k_norm = query_norm(norm_over, width, heads, norm_eps) if image else None
        self.out = Linear(width, width, bias=bias)

    def fused_rows(self) -> dict[str, dict[str, int]]:
        """See `HasFusedLinears`."""
        return dict.fromkeys(("kv", "image_kv"), dict.fromkeys("kv", self.head_dim))

    def forward(
        self, x_BSW: Tensor, text_BLD: Tensor, mask_B11L: Tensor, row: Row | None = None,
        image_BLD: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """(B, S, W); the mask must leave every sample at least one token.

        Args:
            row: where packed samples lie in x, which is then one sequence; None where x has as many as the text.
            image_BLD: tokens of each sample's image, without padding.
        """
        q_BHSD = self.q_norm(self.q(x_BSW).unflatten(2, (-1, self.head_dim))).transpose(1, 2)
        o_BHSD = self._looked_up(q_BHSD, self.kv(text_BLD), self.k_norm, mask_B11L, row)
        if image_BLD is not None and self.image_kv is not None and self.image_k_norm is not None:
            every_B11L = mask_B11L.new_ones((len(image_BLD), 1, 1, image_BLD.shape[1]))
            image_kv = self.image_kv(image_BLD)
            o_BHSD = o_BHSD + self._looked_up(q_BHSD, image_kv, self.image_k_norm, every_B11L, row)
        update: Tensor = self.out(o_BHSD.transpose(1, 2).flatten(2))
        return update

    def _looked_up(
        self, q_BHSD: Tensor, kv_BLW: Tensor, norm: nn.Module, mask_B11L: Tensor, row: Row | None
    ) -> Tensor:  # fmt: skip
        k, v_BLHD = kv_BLW.view(*kv_BLW.shape[:2], -1, 2, self.head_dim).unbind(3)
        k_BHLD, v_BHLD = norm(k).transpose(1, 2), v_BLHD.transpose(1, 2)
        if row is None:
            return attention(q_BHSD, k_BHLD, v_BHLD, mask_B11L)
        parts = [  # of packed samples' queries, each to the keys of its own sample
            attention(q_BHSD[:, :, begin:end], k_BHLD[n : n + 1], v_BHLD[n : n + 1], mask_B11L[n : n + 1])
            for n, (begin, end) in row.spans()
        ]
        return torch.cat(parts, 2)


class Block(nn.Module):
    """Self-attention, text cross-attention and perceptron, each modulated before and gated after."""

    def __init__(
        self, *, width: int, heads: int, text_dim: int, mlp_hidden: int, modulation_rank: int | None,
        gelu: Gelu = "tanh", norm_eps: float = 1e-6,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm = LayerNorm()
        self.modulation = block_modulation(width=width, rank=modulation_rank, parts=3)
        self.self_attention = SelfAttention(width=width, heads=heads, norm_eps=norm_eps)
        self.cross_attention = CrossAttention(width=width, heads=heads, text_dim=text_dim, norm_eps=norm_eps)
        self.mlp = MLP(width=width, hidden=mlp_hidden, gelu=gelu)

    def forward(self, x_BSD: Tensor, context: BlockContext) -> Tensor:
        """The residual stream (B, S, D) after this block."""
        shift, scale, gate, text_shift, text_scale, text_gate, mlp_shift, mlp_scale, mlp_gate = context.levels.by_token(
            self.modulation(context.conditioning_NA)
        )
        x = context.placed(x_BSD)
        x = gated(x, gate, self.self_attention(modulate(self.norm(x), shift, scale), *context.rope, context.segments))
        y = modulate(self.norm(x), text_shift, text_scale)
        x = gated(x, text_gate, self.cross_attention(y, context.text_BLD, context.mask_B11L, context.row))
        return gated(x, mlp_gate, self.mlp(modulate(self.norm(x), mlp_shift, mlp_scale)))
