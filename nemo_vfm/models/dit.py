"""Defines DiT, the diffusion transformer: it maps noisy latents, a noise level and a text to its output.

Peebles and Xie 2023 (arXiv 2212.09748), as video models use it. Text enters by cross-attention, the noise level by
adaLN-zero with nine chunks (optionally low-rank). Rotary positions are 3-D and know the frame rate, and queries and
keys have an RMS norm per head. With learned positions and a padding channel it is the network of Cosmos 1.0. `forward`
has four parts, so that a pipeline can put them on different devices: `context` (inputs shared by all blocks), `embed`
(latents to tokens), `run_blocks` and `output` (tokens to latents). Samples of any shapes may lie side by side in one
sequence, each with its own noise level, text, rate and positions.
Rows of the fused projections are ordered (head, role, dimension). So a tensor-parallel split of the output features
keeps whole heads together, and attention reads its number of heads from the activations.
Shape letters: B batch, C channels, T frames, H height, W width, S video tokens, L text tokens, D width of a token, X
positions of packed samples, N packed samples, or the noise levels of all samples, A width of the conditioning; in
attention W width, H heads, D head dimension.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.bounds import MAX_BLOCKS, MAX_WIDTH, require_between
from nemo_vfm.core.counter_random import uniform
from nemo_vfm.core.types.model_traits import BlockLoop, Op
from nemo_vfm.models.blocks.layers import (
    MLP,
    Gelu,
    LayerNorm,
    LowRankModulation,
    Modulation,
    RMSNorm,
    RMSNormAcrossHeads,
    block_modulation,
    draw_weights,
    gated_residual,
    modulate,
    rotate,
)
from nemo_vfm.models.blocks.video_tokens import (
    AbsolutePositions,
    Grid,
    LearnedPositions,
    NoiseEmbedding,
    NoiseLevels,
    NoiseUncertainty,
    Patch,
    PatchEmbedding,
    Rope,
    SharedNoiseEmbedding,
    TextProjection,
    TokenRow,
    axis_dims,
    either,
    grid_of,
    mask_text,
    noise_levels,
    patches,
    places,
    row,
    unpatch,
    with_uncertainty,
)
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.layers.parallel_attention import attention, self_attention
from nemo_vfm.parallel.layers.token_layout import gather_tokens, split_context, split_tokens
from nemo_vfm.parallel.plan.sharding_spec import ShardingSpec

#: Parameters that begin at zero besides biases and modulations, so that the network's output does.
_POSITIONS = tuple(f"learned_positions.{axis}" for axis in range(3))
_FIRST_ZERO = ("out.weight", "noise_embedding.shared.weight", "uncertainty.weight", "image_embedding.positions")
_LARGEST_PATCH = 256


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
    row: TokenRow | None = None  #: where packed samples lie; None where a batch has one shape

    @property
    def segments(self) -> tuple[int, ...] | None:
        """Lengths of what attends to itself alone, see `self_attention`."""
        return None if self.row is None else self.row.segments


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
        return dict.fromkeys(("kv", "image_kv"), dict.fromkeys("kv", self.head_dim))

    def forward(
        self, x_BSW: Tensor, text_BLD: Tensor, mask_B11L: Tensor, row: TokenRow | None = None,
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
        self, q_BHSD: Tensor, kv_BLW: Tensor, norm: nn.Module, mask_B11L: Tensor, row: TokenRow | None
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
        x = x_BSD if context.places_SD is None else x_BSD + context.places_SD
        x = gated_residual(
            x, gate, self.self_attention(modulate(self.norm(x), shift, scale), *context.rope, context.segments)
        )
        y = modulate(self.norm(x), text_shift, text_scale)
        x = gated_residual(x, text_gate, self.cross_attention(y, context.text_BLD, context.mask_B11L, context.row))
        return gated_residual(x, mlp_gate, self.mlp(modulate(self.norm(x), mlp_shift, mlp_scale)))


class DiT(nn.Module):
    """Diffusion transformer for latent video.

    Args:
        in_channels: C, channels of the latents; the output has as many.
        text_dim: width of a text token.
        width: D, width of a video token.
        depth: number of blocks.
        heads: attention heads; width must be divisible by it.
        patch: latent frames, rows and columns that make one token.
        mlp_ratio: hidden width of the perceptron over `width`.
        text_in_modulation: also add the mean text token, projected, to the conditioning vector. A short training
            obeys the text sooner with it.
        position_embedding: also add a vector of the place in the video to each token. A short training needs it.
        modulation_rank: rank of the blocks' modulations (adaLN-LoRA), which have a third of all parameters without
            one; None gives each block a linear of D x 9 D.
        learned_positions: frames, rows and columns of tokens that have learned vectors, added before every block;
            None has none.
        condition_channels: extra input channels: one for Cosmos, which is 1 at given latents.
        padding_mask: give the network one more input channel, zero everywhere, as Cosmos marks padding.
        qk_norm_eps: epsilon of the query and key norms: 1e-5 in diffusers' Cosmos, 1e-6 in its other models.
        gelu: how the perceptron's GELU is computed: by tanh, or exactly as in Cosmos and Wan.
        noise_scale: factor of the noise level before its sinusoids; 1 scales nothing, as in Cosmos.
        text_projection: width to which a linear and a GELU project text tokens, as in Cosmos 2.5; None has none.
        text_as_given: use text tokens without scaling them to unit size, and do not mask padding (zeros), as in Cosmos.
        bias: whether the first and the last linear have a bias.
        uncertainty: also say, as one more channel of the output, how uncertain the model is at a noise level; the
            objective is then `diffusion.uncertainty_weighting.UncertaintyWeighted`.
        base_fps: frame rate at which one latent frame is one temporal position; None ignores the frame rate.
        rope_theta: base of the rotary frequencies.
        rope_scale: NTK-aware stretch of time, height and width, 1 is none.
    """

    parts = 3  # of a block, each modulated

    def __init__(
        self, *, in_channels: int, text_dim: int, width: int = 384, depth: int = 12, heads: int = 6,
        patch: tuple[int, int, int] = (1, 2, 2), mlp_ratio: float = 4.0, text_in_modulation: bool = False,
        position_embedding: bool = False, modulation_rank: int | None = None,
        learned_positions: tuple[int, int, int] | None = None, condition_channels: int = 0, padding_mask: bool = False,
        qk_norm_eps: float = 1e-6, gelu: Gelu = "tanh", noise_scale: float = 1000.0, text_projection: int | None = None,
        text_as_given: bool = False, bias: bool = True, uncertainty: bool = False, base_fps: float | None = 24.0,
        rope_theta: float = 10_000.0, rope_scale: tuple[float, float, float] = (1.0, 1.0, 1.0),
    ) -> None:  # fmt: skip
        super().__init__()
        self._block_loop: BlockLoop | None = None
        _require_sizes(
            in_channels=in_channels, text_dim=text_dim, width=width, depth=depth, heads=heads, patch=patch,
            mlp_ratio=mlp_ratio, modulation_rank=modulation_rank,
        )  # fmt: skip
        require_between(0, MAX_WIDTH, condition_channels=condition_channels)
        require_between(1, MAX_WIDTH, text_projection=text_projection)
        require_between(1, MAX_WIDTH, **dict(zip(_POSITIONS, learned_positions or (), strict=False)))
        for name, number in (("noise_scale", noise_scale), ("qk_norm_eps", qk_norm_eps)):
            if not 0 < number < math.inf:
                raise ValueError(f"{name} must be above 0, got {number}")
        self.in_channels, self.text_dim, self.width, self.depth = in_channels, text_dim, width, depth
        self.heads, self.modulation_rank, self.padding_mask = heads, modulation_rank, padding_mask
        self.noise_scale, self.qk_norm_eps = noise_scale, qk_norm_eps
        self.gelu, self.text_as_given, self.condition_channels = gelu, text_as_given, condition_channels
        self.context_dim = text_projection or text_dim
        self.patch: Patch = (patch[0], patch[1], patch[2])  # a recipe gives a list
        self.mlp_hidden = round(width * mlp_ratio)
        self.rope = Rope(width // heads, base_fps, rope_theta, (rope_scale[0], rope_scale[1], rope_scale[2]))
        self.patch_embedding = PatchEmbedding(
            in_channels=in_channels + condition_channels + padding_mask, width=width, patch=self.patch, bias=bias
        )
        self.position_embedding = AbsolutePositions(width=width) if position_embedding else None
        self.learned_positions = LearnedPositions(width=width, most=learned_positions) if learned_positions else None
        self.noise_embedding: NoiseEmbedding | SharedNoiseEmbedding = (
            NoiseEmbedding(width=width, scale=noise_scale)
            if modulation_rank is None
            else SharedNoiseEmbedding(width=width, scale=noise_scale)
        )
        self.text_embedding = Linear(text_dim, width) if text_in_modulation else None
        self.text_projection: nn.Module | None = TextProjection(text_dim, text_projection) if text_projection else None
        self.blocks = nn.ModuleList(self.block() for _ in range(depth))
        self.norm = LayerNorm()
        self.modulation: nn.Module = (
            Modulation(width=width, num_chunks=2)
            if modulation_rank is None
            else LowRankModulation(width=width, rank=modulation_rank, parts=1, chunks_each=2)
        )
        self.out = Linear(width, in_channels * patch[0] * patch[1] * patch[2], bias=bias)
        self.uncertainty = NoiseUncertainty() if uncertainty else None
        self.add_modules()
        draw_weights(self, self.initial_weight, torch.initial_seed())

    def add_modules(self) -> None:
        """Add a subclass's own modules, or replace some, before all weights are initialised."""

    def block(self) -> nn.Module:
        return Block(
            width=self.width, heads=self.heads, text_dim=self.context_dim, mlp_hidden=self.mlp_hidden,
            modulation_rank=self.modulation_rank, gelu=self.gelu, norm_eps=self.qk_norm_eps,
        )  # fmt: skip

    def initial_weight(self, name: str, shape: torch.Size, seed: int) -> Tensor:
        """The first value of one parameter: zeros, ones or Xavier-uniform (Glorot and Bengio 2010, equation 16).

        Modulations and the output begin at zero: every block is the identity and the network's output is 0. Of a
        modulation of low rank the second factor alone is zero: with both so, neither would ever get a gradient.
        """
        if name.endswith("bias") or name in _FIRST_ZERO or "modulation.proj." in name or "modulation.up." in name:
            return torch.zeros(shape)
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        bound = (6.0 / (shape[0] + shape[1])) ** 0.5
        return uniform(shape, seed, "init", name).mul_(2 * bound).sub_(bound)

    def forward(
        self, *, noise_B: Tensor, text_BLD: Tensor, text_mask_BL: Tensor, fps_B: Tensor,
        latents_BCTHW: Tensor | None = None, latents_XC: Tensor | None = None, sizes_N3: Tensor | None = None,
        condition_BCTHW: Tensor | None = None, condition_XC: Tensor | None = None, image_BLD: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The output for noisy latents, of one shape or packed.

        Args:
            noise_B: the noise level as the objective expresses it, of order one, per sample or per latent frame (B, T);
                for packed samples, flat over their frames.
            text_BLD: text tokens; what the mask hides has no influence.
            text_mask_BL: True at real tokens. A sample without any gets nothing from its text.
            fps_B: frames per second of each sample.
            latents_BCTHW: noisy latents, scaled as the objective asks.
            latents_XC: the same of packed samples: positions of one after another, time slowest, width fastest.
            sizes_N3: latent frames, rows and columns of each packed sample, on the host.
            condition_BCTHW: the condition channels; None is zeros, as without given frames.
            condition_XC: the same for packed samples.
            image_BLD: image tokens of each sample, for a model that attends to images.

        Returns:
            The shape of the latents; with one channel more where the model says its uncertainty.
        """
        context = self.context(
            noise_B=noise_B, text_BLD=text_BLD, text_mask_BL=text_mask_BL, fps_B=fps_B, latents_BCTHW=latents_BCTHW,
            latents_XC=latents_XC, sizes_N3=sizes_N3, image_BLD=image_BLD,
        )  # fmt: skip
        x_BSD = self.embed(latents_BCTHW, latents_XC, condition_BCTHW, condition_XC, context=context)
        return self.output(self.run_blocks(x_BSD, context), context)

    def context(
        self, *, noise_B: Tensor, text_BLD: Tensor, text_mask_BL: Tensor, fps_B: Tensor,
        latents_BCTHW: Tensor | None = None, latents_XC: Tensor | None = None, sizes_N3: Tensor | None = None,
        image_BLD: Tensor | None = None, **others: Tensor,
    ) -> BlockContext:  # fmt: skip
        """The inputs that every block shares; of the latents only the shape is used, and `others` are for `embed`."""
        latents = either(latents_BCTHW, latents_XC)
        if latents.shape[1] != self.in_channels:
            raise ValueError(
                f"latents have {latents.shape[1]} channels and the model was built for {self.in_channels}; "
                "set the model's in_channels to the codec's number of channels"
            )
        if text_BLD.shape[2] != self.text_dim:
            raise ValueError(
                f"text tokens are {text_BLD.shape[2]} wide and the model was built for {self.text_dim}; "
                "set the model's text_dim to the text encoder's dim"
            )
        packed = None if sizes_N3 is None else row(sizes_N3, len(latents), self.patch, latents.device)
        grid = (1, 1, sum(packed.segments)) if packed else grid_of(tuple(latents.shape), self.patch)
        levels = noise_levels(noise_B, len(text_BLD), grid, packed)
        text, mask_B11L = mask_text(text_BLD, text_mask_BL, as_given=self.text_as_given)
        conditioning_NA = self.conditioning(levels, text, text_mask_BL)
        if self.text_projection is not None:
            text = self.text_projection(text)
        image = None if image_BLD is None else self.image_tokens(image_BLD)
        cos, sin = packed.rotations(self.rope, fps_B) if packed else self.rope.table(grid, fps_B)
        rope = split_context(cos, 1), split_context(sin, 1)
        places_SD = None if self.learned_positions is None else self.learned_positions(*places(grid, packed))
        return BlockContext(grid, levels, fps_B, conditioning_NA, rope, text, mask_B11L, image, places_SD, packed)

    def image_tokens(self, image_BLD: Tensor) -> Tensor:
        """Image tokens at the width of cross-attention."""
        raise ValueError(f"this {type(self).__name__} does not attend to images; leave the image out")

    def embed(
        self, latents_BCTHW: Tensor | None = None, latents_XC: Tensor | None = None,
        condition_BCTHW: Tensor | None = None, condition_XC: Tensor | None = None, *, context: BlockContext,
    ) -> Tensor:  # fmt: skip
        """Latents as tokens (B, S, D), those of this rank; packed ones are one sequence."""
        latents = either(latents_BCTHW, latents_XC)
        condition = condition_BCTHW if condition_XC is None else condition_XC
        if condition is not None:
            expected = (latents.shape[0], self.condition_channels, *latents.shape[2:])
            if tuple(condition.shape) != expected:
                raise ValueError(
                    f"condition channels have the shape {tuple(condition.shape)} with latents of "
                    f"{tuple(latents.shape)}; expected {expected}, since the model's condition_channels is "
                    f"{self.condition_channels}"
                )
            latents = torch.cat([latents, condition.to(latents.dtype)], 1)
        missing = self.padding_mask + (self.condition_channels if condition is None else 0)
        if missing:
            latents = F.pad(latents, [0, 0] * (latents.ndim - 2) + [0, missing])
        cut = context.row.patches(latents, self.patch) if context.row else patches(latents, self.patch)
        x_BSD: Tensor = self.patch_embedding(split_tokens(cut, 1))
        if self.position_embedding is None:
            return x_BSD
        positions: Tensor = self.position_embedding(*places(context.grid, context.row))
        return x_BSD + positions

    def run_blocks(self, x_BSD: Tensor, context: Any) -> Tensor:
        """The tokens after the blocks that are here; each of them is given `context` too."""
        if self._block_loop is not None:
            return self._block_loop(self.blocks, x_BSD, context)
        for block in self.blocks:
            x_BSD = block(x_BSD, context)
        return x_BSD

    def use_block_loop(self, loop: BlockLoop | None) -> None:
        self._block_loop = loop

    def output(self, x_BSD: Tensor, context: BlockContext) -> Tensor:
        """Tokens as latents, all of them on every rank."""
        shift, scale = context.levels.by_token(self.modulation(context.conditioning_NA))
        tokens = self.out(modulate(self.norm(x_BSD), shift, scale))
        if self.uncertainty is not None:
            (u_BS1,) = context.levels.by_token((self.uncertainty(context.levels.value_N)[:, None, None],))
            tokens = with_uncertainty(tokens, u_BS1.squeeze(2).expand(tokens.shape[:2]), self.in_channels)
        tokens = gather_tokens(tokens, 1)
        return (
            unpatch(tokens, context.grid, self.patch)
            if context.row is None
            else context.row.latents(tokens, self.patch)
        )

    def conditioning(self, levels: NoiseLevels, text_BLD: Tensor, text_mask_BL: Tensor) -> Tensor:
        """The conditioning of every block: (N, D), or (N, 4 D) with the part that low-rank modulations share."""
        embedded = self.noise_embedding(levels.value_N)
        vector, shared = embedded if isinstance(embedded, tuple) else (embedded, None)
        if self.text_embedding is not None:
            weight_BL1 = text_mask_BL.unsqueeze(2).to(text_BLD.dtype)
            mean_BD = (text_BLD * weight_BL1).sum(1) / weight_BL1.sum(1).clamp(min=1)  # 0 where no text may be seen
            vector = vector + self.text_embedding(mean_BD)[levels.sample_N]
        return F.silu(vector) if shared is None else torch.cat([F.silu(vector), shared], dim=1)

    def plan(self) -> ShardingSpec:
        return ShardingSpec(
            column=(
                "blocks.*.self_attention.qkv",
                "blocks.*.cross_attention.q",
                "blocks.*.cross_attention.kv",
                "blocks.*.mlp.up",
            ),
            row=("blocks.*.self_attention.out", "blocks.*.cross_attention.out", "blocks.*.mlp.down"),
            whole_input=("blocks.*.cross_attention.kv",),
            whole_gradient=("text_projection",) if self.text_projection is not None else (),
            per_head=("blocks.*.self_attention.*_norm", "blocks.*.cross_attention.*_norm"),
            heads=self.heads,
            blocks="blocks",
            recompute=("blocks.*",),
            first=("patch_embedding",) + (("position_embedding",) if self.position_embedding is not None else ()),
            last=("norm", "modulation", "out") + (("uncertainty",) if self.uncertainty is not None else ()),
            every=("noise_embedding",)
            + (("text_embedding",) if self.text_embedding is not None else ())
            + (("text_projection",) if self.text_projection is not None else ())
            + (("learned_positions",) if self.learned_positions is not None else ()),
        )

    def small_inputs(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one sample that is as small as it can be and still be cut among 8 devices, see `HasDummyInputs`."""
        frames, rows, columns = self.patch
        return {
            "latents_BCTHW": (1, self.in_channels, 2 * frames, 4 * rows, 4 * columns),
            "text_BLD": (1, 5, self.text_dim),
        }

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The matrix products of one forward pass; a multiply and an add count as two."""
        batch, text_tokens, _ = inputs["text_BLD"]
        if "sizes_N3" in inputs:  # packed samples; else all are of one shape
            sides = iter(inputs["sizes_N3"])
            grids = [grid_of((1, 1, *size), self.patch) for size in zip(sides, sides, sides, strict=True)]
        else:
            grids = [grid_of(inputs["latents_BCTHW"], self.patch)] * inputs["latents_BCTHW"][0]
        d = self.width
        tokens = sum(math.prod(grid) for grid in grids)
        video = 2.0 * tokens * d  # of a linear from width 1 to width D, over all video tokens
        text_kv = 2.0 * batch * text_tokens * self.context_dim * 2 * d
        text = self.text_dim if self.text_embedding is not None else 0
        projections = [] if self.text_projection is None else self.text_projection.modules()
        projected = sum(one.in_features * one.out_features for one in projections if isinstance(one, nn.Linear))
        levels = math.prod(inputs.get("noise_B", (batch,)))
        patches_dim = self.patch_embedding.proj.in_features + self.out.out_features
        positions = 0.0
        if self.position_embedding is not None:  # once for all samples of one shape
            own = tokens if "sizes_N3" in inputs else math.prod(grids[0])
            positions = 2.0 * own * d * self.position_embedding.proj.in_features
        within: dict[tuple[str, str], Op] = {}  # attention of all grids together, in the order of the first
        for grid in grids:
            for op in self._attention_ops(2.0 * math.prod(grid) * d, grid):
                before = within.get((op.kind, op.name), replace(op, flops=0.0, bytes=0.0))
                within[op.kind, op.name] = replace(op, flops=before.flops + op.flops, bytes=before.bytes + op.bytes)
        return [
            Op("linear", positions + video * patches_dim, "patch embedding and output"),
            Op(
                "linear",
                2.0 * d * (levels * self._conditioning_columns() + batch * text),
                "conditioning and modulation",
            ),
            *([Op("linear", 2.0 * batch * text_tokens * projected, "text projection")] if projected else []),
            *within.values(),
            Op("linear", self.depth * (video * 2 * d + text_kv), "cross-attention projections"),
            Op("attention", self.depth * 2 * video * text_tokens, "cross-attention"),
            Op("linear", self.depth * video * 2 * self.mlp_hidden, "perceptron"),
        ]

    def _attention_ops(self, video: float, grid: Grid) -> list[Op]:
        """Of the blocks' attention among video tokens; `video` is what a linear to one number costs."""
        return [
            Op("linear", self.depth * video * 4 * self.width, "self-attention projections"),
            Op("attention", self.depth * 2 * video * math.prod(grid), "self-attention"),
        ]

    def _conditioning_columns(self) -> int:
        """Output columns of the linears applied to a noise level's vector."""
        d = self.width
        if isinstance(self.noise_embedding, NoiseEmbedding):
            return 2 * self.noise_embedding.num_frequencies + d + 3 * self.parts * d * self.depth + 2 * d
        assert self.modulation_rank is not None
        return d + 3 * d + self.modulation_rank * (4 * self.parts * self.depth + 3)


def _require_sizes(
    *, in_channels: int, text_dim: int, width: int, depth: int, heads: int, patch: Patch, mlp_ratio: float,
    modulation_rank: int | None,
) -> None:  # fmt: skip
    require_between(1, MAX_WIDTH, in_channels=in_channels, text_dim=text_dim, width=width, heads=heads)
    require_between(1, MAX_BLOCKS, depth=depth)
    require_between(1 / width, MAX_WIDTH / width, mlp_ratio=mlp_ratio)
    if width % heads:
        raise ValueError(f"width {width} is not divisible by heads {heads}")
    if len(patch) != 3 or min(patch) < 1 or max(patch) > _LARGEST_PATCH:
        raise ValueError(
            f"patch must be three sizes of 1 to {_LARGEST_PATCH} (frames, rows, columns), got {tuple(patch)}"
        )
    axis_dims(width // heads)
    if modulation_rank is not None and modulation_rank < 1:
        raise ValueError(
            f"modulation_rank must be at least 1, got {modulation_rank}; write null for modulations without one"
        )
    require_between(1, MAX_WIDTH, modulation_rank=modulation_rank)
    if modulation_rank is not None and width % 2:
        raise ValueError(f"width {width} is odd, and a noise level of low rank takes as many sines as cosines")
