"""Defines Wan, the diffusion transformer of Wan 2.1 and 2.2 (arXiv 2503.20314).

It is a DiT with different blocks. One modulation is shared by all blocks, and each block adds a table of its own. Query
and key norms span all heads, linears have biases, and text is projected to the width of video tokens. Image-to-video
models take given frames as extra input channels (`condition_channels`); those of 2.1 also attend to image features
(`image_dim`).
Shape letters: B batch, N noise levels, L text tokens, I image features, D width of a token.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.bounds import MAX_WIDTH, require_between
from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.models.blocks.layers import MLP, LayerNorm, TableModulation, gated_residual, modulate
from nemo_vfm.models.blocks.video_tokens import NoiseEmbedding, NoiseLevels
from nemo_vfm.models.dit import BlockContext, CrossAttention, DiT, SelfAttention
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.plan.sharding_spec import ShardingSpec

#: Slices of the conditioning: the output's vector, then shift, scale and gate of attention and of the MLP.
LAST, INSIDE = (0, 1), (1, 7)


class Wan(DiT):
    """The transformer of Wan.

    Args:
        in_channels: C, latent channels of input and output.
        text_dim: width of a text token.
        width: D, width of a video token.
        depth: number of blocks.
        heads: attention heads; width must be divisible by it.
        mlp_hidden: hidden width of the MLP.
        patch: latent frames, rows and columns that make one token.
        condition_channels: extra input channels: 20 for image-to-video, a mask and the given latents.
        image_dim: width of image features for cross-attention; None has no image input.
        image_positions: number of learned positions of image features, for a first and a last image; None has none.
        num_frequencies: sines of the noise-level embedding; it has as many cosines.
        noise_scale: factor of the noise level before its embedding.
        rope_theta: base of the rotary frequencies.
    """

    def __init__(
        self, *, in_channels: int, text_dim: int, width: int = 1536, depth: int = 30, heads: int = 12,
        mlp_hidden: int = 8960, patch: tuple[int, int, int] = (1, 2, 2), condition_channels: int = 0,
        image_dim: int | None = None, image_positions: int | None = None, num_frequencies: int = 128,
        noise_scale: float = 1000.0, rope_theta: float = 10_000.0,
    ) -> None:  # fmt: skip
        require_between(1, MAX_WIDTH, mlp_hidden=mlp_hidden, image_dim=image_dim, image_positions=image_positions,
                        num_frequencies=num_frequencies)  # fmt: skip
        if image_positions is not None and image_dim is None:
            raise ValueError("image_positions needs image features; set image_dim too, or leave both out")
        self.image_dim, self.image_positions = image_dim, image_positions  # used by super().__init__
        self.num_frequencies = num_frequencies
        super().__init__(
            in_channels=in_channels, text_dim=text_dim, width=width, depth=depth, heads=heads, patch=patch,
            mlp_ratio=mlp_hidden / width, condition_channels=condition_channels, text_as_given=True,
            noise_scale=noise_scale, base_fps=None, rope_theta=rope_theta,
        )  # fmt: skip

    def block(self) -> nn.Module:
        return WanBlock(width=self.width, heads=self.heads, mlp_hidden=self.mlp_hidden, image=bool(self.image_dim))

    def add_modules(self) -> None:
        """Add the embeddings that a DiT does not have, and modulate by tables."""
        self.modulation = TableModulation(width=self.width, rows=2, vectors=LAST)
        self.noise_embedding = NoiseEmbedding(
            width=self.width, num_frequencies=self.num_frequencies, scale=self.noise_scale
        )
        self.shared_modulation = WanConditioning(width=self.width)
        self.text_projection = MLP(width=self.text_dim, hidden=self.width, out=self.width, bias=True)
        self.context_dim = self.width
        self.image_embedding = (
            ImageEmbedding(image_dim=self.image_dim, width=self.width, positions=self.image_positions)
            if self.image_dim
            else None
        )

    def conditioning(self, levels: NoiseLevels, text_BLD: Tensor, text_mask_BL: Tensor) -> Tensor:
        """The conditioning of the output and every block: (N, 7 D)."""
        conditioning_NA: Tensor = self.shared_modulation(self.noise_embedding(levels.value_N))
        return conditioning_NA

    def image_tokens(self, image_BLD: Tensor) -> Tensor:
        """Image features (B, I, image_dim), projected to the width of video tokens."""
        if self.image_embedding is None:
            return super().image_tokens(image_BLD)
        expected = self.image_positions or image_BLD.shape[1], self.image_dim
        if image_BLD.shape[1:] != expected:
            raise ValueError(f"image features have the shape {tuple(image_BLD.shape[1:])}; expected {expected}")
        tokens: Tensor = self.image_embedding(image_BLD)
        return tokens

    def plan(self) -> ShardingSpec:
        how = super().plan()
        image = ("blocks.*.cross_attention.image_kv",) if self.image_dim else ()
        embedding = ("image_embedding",) if self.image_dim else ()
        norms = ("q_norm", "k_norm", *(("image_k_norm",) if self.image_dim else ()))
        return replace(
            how,
            column=(*how.column, *image),
            whole_input=(*how.whole_input, *image),
            whole_gradient=(*how.whole_gradient, *embedding),
            per_head=(),
            across_heads=("blocks.*.self_attention.*_norm", *(f"blocks.*.cross_attention.{name}" for name in norms)),
            every=(*how.every, "shared_modulation", *embedding),
        )

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The matrix products of one forward pass; a multiply and an add count as two."""
        found = super().ops(inputs)
        if self.image_dim is None or "image_BLD" not in inputs:
            return found
        batch, features, _ = inputs["image_BLD"]
        video = next(op.flops for op in found if op.name == "cross-attention") / inputs["text_BLD"][1]
        embedded = self.image_dim * (self.image_dim + self.width) + self.depth * 2 * self.width**2
        return [
            *found,
            Op("linear", 2.0 * batch * features * embedded, "image features"),
            Op("attention", video * features, "cross-attention to the image"),
        ]

    def _conditioning_columns(self) -> int:
        return 2 * self.num_frequencies + self.width + 6 * self.width


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
        x = gated_residual(x_BSD, gate, self.self_attention(seen, *context.rope, context.segments))
        x = x + self.cross_attention(
            self.text_norm(x), context.text_BLD, context.mask_B11L, context.row, context.image_BLD
        )
        return gated_residual(x, mlp_gate, self.mlp(modulate(self.norm(x), mlp_shift, mlp_scale)))


class ImageEmbedding(nn.Module):
    """Projects image features to the width of video tokens, with a norm before and after.

    Models that take a first and a last image have learned positions.
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
