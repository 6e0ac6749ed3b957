# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Noisy latents, a noise level and a text in; the network's output in the shape of the latents out: DiT.

Peebles and Xie 2023 (arXiv 2212.09748) in the form video models took: text by cross-attention, noise level by
adaLN-zero with nine chunks, 3-D rotary positions that know the frame rate, RMS norm of queries and keys in each head.
`forward` is four parts, so that a pipeline can put them on different devices: `scene` (what every block is told),
`enter` (latents to tokens), `through` (the blocks) and `leave` (tokens to latents).
Shape letters: B batch, C channels, T frames, H height, W width, S video tokens, L text tokens, D width of a token.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.seed import generator
from nemo_vfm.core.types import Op
from nemo_vfm.models.blocks.attention import CrossAttention, SelfAttention
from nemo_vfm.models.blocks.mlp import MLP
from nemo_vfm.models.blocks.modulation import Modulation, gated, modulate
from nemo_vfm.models.blocks.norm import LayerNorm, rms_normalised
from nemo_vfm.models.blocks.patch import Patch, PatchEmbedding, grid_of, patches, unpatch
from nemo_vfm.models.blocks.position import AbsolutePositions
from nemo_vfm.models.blocks.rope import Grid, Rope, axis_dims
from nemo_vfm.models.blocks.timestep import NoiseEmbedding
from nemo_vfm.parallel.declared import Declared
from nemo_vfm.parallel.layout import gather_tokens, split_context, split_tokens
from nemo_vfm.parallel.products import Linear


@dataclass(frozen=True, slots=True)
class Scene:
    """What every block is told besides the tokens.

    Args:
        grid: tokens along time, height and width.
        conditioning_BD: the noise level (and text) as the vector that modulates, after its SiLU.
        rope: rotations of the tokens that attention sees here.
        text_BLD: text at unit scale.
        mask_B11L: which of its tokens may be seen.
    """

    grid: Grid
    conditioning_BD: Tensor
    rope: tuple[Tensor, Tensor]
    text_BLD: Tensor
    mask_B11L: Tensor


class Block(nn.Module):
    """Self-attention, text cross-attention and perceptron, each modulated before and gated after."""

    def __init__(self, *, width: int, heads: int, text_dim: int, mlp_hidden: int) -> None:
        super().__init__()
        self.norm = LayerNorm()
        self.modulation = Modulation(width=width, num_chunks=9)
        self.self_attention = SelfAttention(width=width, heads=heads)
        self.cross_attention = CrossAttention(width=width, heads=heads, text_dim=text_dim)
        self.mlp = MLP(width=width, hidden=mlp_hidden)

    def forward(self, x_BSD: Tensor, scene: Scene) -> Tensor:
        """The residual stream (B, S, D) after this block."""
        shift, scale, gate, text_shift, text_scale, text_gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(
            scene.conditioning_BD
        )
        x = gated(x_BSD, gate, self.self_attention(modulate(self.norm(x_BSD), shift, scale), *scene.rope))
        text = self.cross_attention(modulate(self.norm(x), text_shift, text_scale), scene.text_BLD, scene.mask_B11L)
        x = gated(x, text_gate, text)
        return gated(x, mlp_gate, self.mlp(modulate(self.norm(x), mlp_shift, mlp_scale)))


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
        base_fps: frame rate at which one latent frame is one temporal position.
        rope_theta: base of the rotary frequencies.
        rope_scale: NTK-aware stretch of time, height and width, 1 is none.

    Raises:
        ValueError: numbers that do not fit together.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        text_dim: int,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
        patch: tuple[int, int, int] = (1, 2, 2),
        mlp_ratio: float = 4.0,
        text_in_modulation: bool = False,
        position_embedding: bool = False,
        base_fps: float = 24.0,
        rope_theta: float = 10_000.0,
        rope_scale: tuple[float, float, float] = (1.0, 1.0, 1.0),
    ) -> None:
        super().__init__()
        _check(in_channels=in_channels, text_dim=text_dim, width=width, depth=depth, heads=heads, patch=patch)
        self.in_channels, self.text_dim, self.width, self.depth = in_channels, text_dim, width, depth
        self.heads = heads
        self.patch: Patch = (patch[0], patch[1], patch[2])  # a recipe gives a list
        self.mlp_hidden = round(width * mlp_ratio)
        self.rope = Rope(width // heads, base_fps, rope_theta, (rope_scale[0], rope_scale[1], rope_scale[2]))
        self.patch_embedding = PatchEmbedding(in_channels=in_channels, width=width, patch=self.patch)
        self.position_embedding = AbsolutePositions(width=width) if position_embedding else None
        self.noise_embedding = NoiseEmbedding(width=width)
        self.text_embedding = Linear(text_dim, width) if text_in_modulation else None
        self.blocks = nn.ModuleList(
            Block(width=width, heads=heads, text_dim=text_dim, mlp_hidden=self.mlp_hidden) for _ in range(depth)
        )
        self.norm = LayerNorm()
        self.modulation = Modulation(width=width, num_chunks=2)
        self.out = Linear(width, in_channels * patch[0] * patch[1] * patch[2])
        self.init_weights(torch.initial_seed())

    def init_weights(self, seed: int) -> None:
        """Draw every weight from (seed, its name), so that no layout of devices changes it.

        The constructor does this with torch's seed, the one `torch.manual_seed` was last given.

        Modulations and the output begin at zero: every block is the identity and the network's output is 0.
        On the meta device there is nothing to draw and this does nothing.
        """
        for name, parameter in self.named_parameters():
            if not parameter.is_meta:
                with torch.no_grad():
                    parameter.copy_(self.initial_weight(name, parameter.shape, seed))

    def initial_weight(self, name: str, shape: torch.Size, seed: int) -> Tensor:
        """The first value of one parameter: zeros, ones or Xavier-uniform (Glorot and Bengio 2010, equation 16)."""
        if name.endswith("bias") or "modulation." in name or name == "out.weight":
            return torch.zeros(shape)
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        bound = (6.0 / (shape[0] + shape[1])) ** 0.5
        return torch.rand(shape, generator=generator(seed, "init", name)).mul_(2 * bound).sub_(bound)

    def forward(
        self, latents_BCTHW: Tensor, noise_B: Tensor, text_BLD: Tensor, text_mask_BL: Tensor, fps_B: Tensor
    ) -> Tensor:
        """The output for noisy latents.

        Args:
            latents_BCTHW: noisy latents, scaled as the objective asks.
            noise_B: the noise level as the objective expresses it, of order one.
            text_BLD: text tokens; what the mask hides has no influence.
            text_mask_BL: True at real tokens. A sample without any gets nothing from its text.
            fps_B: frames per second of each sample.

        Returns:
            (B, C, T, H, W).
        """
        scene = self.scene(latents_BCTHW, noise_B, text_BLD, text_mask_BL, fps_B)
        return self.leave(self.through(self.enter(latents_BCTHW, scene), scene), scene)

    def scene(
        self, latents_BCTHW: Tensor, noise_B: Tensor, text_BLD: Tensor, text_mask_BL: Tensor, fps_B: Tensor
    ) -> Scene:
        """What every block is told; of the latents only their shape matters."""
        self._check_inputs(latents_BCTHW, text_BLD)
        grid = grid_of(tuple(latents_BCTHW.shape), self.patch)
        text, mask_B11L = _visible(text_BLD, text_mask_BL)
        conditioning_BD = F.silu(self.conditioning(noise_B, text, text_mask_BL))
        cos, sin = self.rope.table(grid, fps_B)
        return Scene(grid, conditioning_BD, (split_context(cos, 1), split_context(sin, 1)), text, mask_B11L)

    def enter(self, latents_BCTHW: Tensor, scene: Scene) -> Tensor:
        """Latents as tokens (B, S, D), those of this rank."""
        x_BSD: Tensor = self.patch_embedding(split_tokens(patches(latents_BCTHW, self.patch), 1))
        if self.position_embedding is None:
            return x_BSD
        positions: Tensor = self.position_embedding(scene.grid)
        return x_BSD + positions

    def through(self, x_BSD: Tensor, scene: Scene) -> Tensor:
        """The tokens after the blocks that are here."""
        for block in self.blocks:
            x_BSD = block(x_BSD, scene)
        return x_BSD

    def leave(self, x_BSD: Tensor, scene: Scene) -> Tensor:
        """Tokens as latents (B, C, T, H, W), all of them on every rank."""
        shift, scale = self.modulation(scene.conditioning_BD)
        tokens = gather_tokens(self.out(modulate(self.norm(x_BSD), shift, scale)), 1)
        return unpatch(tokens, scene.grid, self.patch)

    def conditioning(self, noise_B: Tensor, text_BLD: Tensor, text_mask_BL: Tensor) -> Tensor:
        """The vector (B, D) that modulates every block."""
        vector: Tensor = self.noise_embedding(noise_B)
        if self.text_embedding is None:
            return vector
        weight_BL1 = text_mask_BL.unsqueeze(2).to(text_BLD.dtype)
        mean_BD = (text_BLD * weight_BL1).sum(1) / weight_BL1.sum(1).clamp(min=1)
        pooled: Tensor = self.text_embedding(mean_BD)
        return vector + pooled

    def plan(self) -> Declared:
        """How an engine may cut this model."""
        return Declared(
            column=(
                "blocks.*.self_attention.qkv",
                "blocks.*.cross_attention.q",
                "blocks.*.cross_attention.kv",
                "blocks.*.mlp.up",
            ),
            row=("blocks.*.self_attention.out", "blocks.*.cross_attention.out", "blocks.*.mlp.down"),
            whole_input=("blocks.*.cross_attention.kv",),
            per_head=("blocks.*.self_attention.*_norm", "blocks.*.cross_attention.*_norm"),
            heads=self.heads,
            blocks="blocks",
            recompute=("blocks.*",),
            first=("patch_embedding",) + (("position_embedding",) if self.position_embedding is not None else ()),
            last=("norm", "modulation", "out"),
            every=("noise_embedding",) + (("text_embedding",) if self.text_embedding is not None else ()),
        )

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The matrix products of one forward pass; a multiply and an add count as two."""
        batch, text_tokens, _ = inputs["text_BLD"]
        t, h, w = grid_of(inputs["latents_BCTHW"], self.patch)
        tokens, d, patch_dim = t * h * w, self.width, self.out.out_features
        video = 2.0 * batch * tokens * d  # of a linear from width 1 to width D, over all video tokens
        text_kv = 2.0 * batch * text_tokens * self.text_dim * 2 * d
        conditioning = 2.0 * batch * d * (2 * self.noise_embedding.num_frequencies + d + 9 * d * self.depth + 2 * d)
        if self.text_embedding is not None:
            conditioning += 2.0 * batch * d * self.text_dim
        positions = 0.0
        if self.position_embedding is not None:  # once for all samples
            positions = 2.0 * tokens * d * self.position_embedding.proj.in_features
        return [
            Op("linear", positions + video * patch_dim * 2, "patch embedding and output"),
            Op("linear", conditioning, "conditioning and modulation"),
            Op("linear", self.depth * video * 4 * d, "self-attention projections"),
            Op("attention", self.depth * 2 * video * tokens, "self-attention"),
            Op("linear", self.depth * (video * 2 * d + text_kv), "cross-attention projections"),
            Op("attention", self.depth * 2 * video * text_tokens, "cross-attention"),
            Op("linear", self.depth * video * 2 * self.mlp_hidden, "perceptron"),
        ]

    def _check_inputs(self, latents_BCTHW: Tensor, text_BLD: Tensor) -> None:
        if latents_BCTHW.shape[1] != self.in_channels:
            raise ValueError(
                f"latents have {latents_BCTHW.shape[1]} channels and the model was built for {self.in_channels}; "
                "set the model's in_channels to the codec's number of channels"
            )
        if text_BLD.shape[2] != self.text_dim:
            raise ValueError(
                f"text tokens are {text_BLD.shape[2]} wide and the model was built for {self.text_dim}; "
                "set the model's text_dim to the text encoder's dim"
            )


def _check(*, in_channels: int, text_dim: int, width: int, depth: int, heads: int, patch: tuple[int, int, int]) -> None:
    for name, value in (("in_channels", in_channels), ("text_dim", text_dim), ("width", width), ("heads", heads)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if depth < 0:
        raise ValueError(f"depth must not be negative, got {depth}")
    if width % heads:
        raise ValueError(f"width {width} is not divisible by heads {heads}")
    if len(patch) != 3 or min(patch) < 1:
        raise ValueError(f"patch must be three sizes of at least 1 (frames, rows, columns), got {tuple(patch)}")
    axis_dims(width // heads)


def _visible(text_BLD: Tensor, text_mask_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Text at unit scale with hidden tokens zeroed, and the mask that attention uses.

    A sample without a real token sees all its tokens, which are zero and so contribute zero values: a softmax over
    nothing is 0 / 0 in some attention kernels and zero in others.
    """
    text = rms_normalised(text_BLD) * text_mask_BL.unsqueeze(2).to(text_BLD.dtype)
    seen_BL = text_mask_BL | ~text_mask_BL.any(dim=1, keepdim=True)
    return text, seen_BL[:, None, None, :]
