"""Defines ST-DiT, the spatial-temporal diffusion transformer for latent video.

It is the hybrid of arXiv 2503.12964 (4.6). In each block tokens attend to the whole video, then to the frames of their
place, then to the places of their frame. The last two are cheap however long the video is. Everything else is as in
DiT, so this is a DiT with other blocks.
Shape letters: B batch, C channels, T frames, H height, W width, S video tokens, L text tokens, D width of a token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.models.blocks.layers import MLP, LayerNorm, block_modulation, gated_residual, modulate, rotate
from nemo_vfm.models.blocks.video_tokens import Grid
from nemo_vfm.models.dit import BlockContext, CrossAttention, DiT, SelfAttention, SelfProjections
from nemo_vfm.parallel.layers.parallel_attention import attention
from nemo_vfm.parallel.layers.temporal_all_to_all import frame_order, from_lines, to_lines
from nemo_vfm.parallel.plan.sharding_spec import ShardingSpec

Reach = Literal["full", "temporal", "spatial"]
Rotations = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class SpaceTime:
    """What blocks of an ST-DiT are told besides the tokens."""

    context: BlockContext  #: what blocks of a DiT are told
    along_time: Rotations  #: rotations of a line's frames, (B, 1, T, 1, E)
    across_frame: Rotations  #: of a frame's places, (1, 1, P, 1, E)


class STDiT(DiT):
    """Spatial-temporal diffusion transformer for latent video.

    Args:
        in_channels: C, channels of the latents; the output has as many.
        text_dim: width of a text token.
        width: D, width of a video token.
        depth: number of blocks.
        heads: attention heads; width must be divisible by it.
        reaches: the attentions of a block, in order: full (the whole video), temporal (the frames of one place),
            spatial (the places of one frame). Leaving full out makes long videos cheap and lets far places meet late.
        patch: latent frames, rows and columns that make one token.
        mlp_ratio: hidden width of the perceptron over `width`.
        modulation_rank: see DiT.
        learned_positions: see DiT.
        text_in_modulation: see DiT.
        uncertainty: see DiT.
        base_fps: frame rate at which one latent frame is one temporal position.
        rope_theta: base of the rotary frequencies.
        rope_scale: NTK-aware stretch of time, height and width, 1 is none.
    """

    def __init__(
        self, *, in_channels: int, text_dim: int, width: int = 384, depth: int = 12, heads: int = 6,
        reaches: tuple[Reach, ...] = ("full", "temporal", "spatial"), patch: tuple[int, int, int] = (1, 2, 2),
        mlp_ratio: float = 4.0, modulation_rank: int | None = 256,
        learned_positions: tuple[int, int, int] | None = None, text_in_modulation: bool = False,
        uncertainty: bool = False, base_fps: float = 24.0, rope_theta: float = 10_000.0,
        rope_scale: tuple[float, float, float] = (1.0, 1.0, 1.0),
    ) -> None:  # fmt: skip
        if not reaches or len(set(reaches)) < len(reaches):
            raise ValueError(f"reaches must name full, temporal or spatial, each at most once; got {list(reaches)}")
        self.reaches, self.parts = tuple(reaches), len(reaches) + 2  # which the constructor of a DiT builds blocks of
        super().__init__(
            in_channels=in_channels, text_dim=text_dim, width=width, depth=depth, heads=heads, patch=patch,
            mlp_ratio=mlp_ratio, modulation_rank=modulation_rank, learned_positions=learned_positions,
            text_in_modulation=text_in_modulation, uncertainty=uncertainty, base_fps=base_fps, rope_theta=rope_theta,
            rope_scale=rope_scale,
        )  # fmt: skip

    def block(self) -> nn.Module:
        return SpaceTimeBlock(
            width=self.width, heads=self.heads, text_dim=self.text_dim, mlp_hidden=self.mlp_hidden,
            modulation_rank=self.modulation_rank, reaches=self.reaches,
        )  # fmt: skip

    def run_blocks(self, x_BSD: Tensor, context: BlockContext) -> Tensor:
        return super().run_blocks(x_BSD, self.space_time(context))

    def space_time(self, context: BlockContext) -> SpaceTime:
        """What these blocks are told."""
        if context.row is not None:
            raise ValueError(
                "packed samples have no frames and places in common, and an STDiT attends over time and over space; "
                "use batches of one shape (data without PackedLatents), or train a DiT on packs"
            )
        frames, rows, columns = context.grid
        places = self.rope.table((1, rows, columns), context.fps_B[:1])
        lines = self.rope.table((frames, 1, 1), context.fps_B)
        order = frame_order(frames, context.fps_B.device)
        cos, sin = (x.unsqueeze(1)[:, :, order] for x in lines)
        return SpaceTime(context, (cos, sin), (places[0].unsqueeze(1), places[1].unsqueeze(1)))

    def plan(self) -> ShardingSpec:
        among, text = "blocks.*.attentions.*", "blocks.*.cross_attention"
        return replace(
            super().plan(),
            column=(f"{among}.qkv", f"{text}.q", f"{text}.kv", "blocks.*.mlp.up"),
            row=(f"{among}.out", f"{text}.out", "blocks.*.mlp.down"),
            per_head=(f"{among}.*_norm", f"{text}.*_norm"),
        )

    def small_inputs(self) -> dict[str, tuple[int, ...]]:
        """See DiT: as many frames as devices, and as many places of each."""
        frames, rows, columns = self.patch
        latents = (1, self.in_channels, 8 * frames, 2 * rows, 4 * columns)
        return {**super().small_inputs(), "latents_BCTHW": latents}

    def _attention_ops(self, video: float, grid: Grid) -> list[Op]:
        seen = {"full": math.prod(grid), "temporal": grid[0], "spatial": grid[1] * grid[2]}
        projections = self.depth * len(self.reaches) * video * 4 * self.width
        return [
            Op("linear", projections, "self-attention projections"),
            *(Op("attention", self.depth * 2 * video * seen[reach], f"{reach} attention") for reach in self.reaches),
        ]


class RunAttention(SelfProjections):
    """Every token looks at those of its own run: the frames of one place, or the places of one frame."""

    def forward(self, x_BSW: Tensor, cos_G1R1E: Tensor, sin_G1R1E: Tensor) -> Tensor:
        """The shape of x; its tokens are runs as long as the rotations, one after another."""
        qkv = self.qkv(x_BSW).unflatten(2, (-1, 3, self.head_dim))
        groups, _, run = cos_G1R1E.shape[:3]
        q, k, v = qkv.reshape(groups, -1, run, *qkv.shape[2:]).unbind(4)
        q, k = (rotate(norm(x), cos_G1R1E, sin_G1R1E) for norm, x in ((self.q_norm, q), (self.k_norm, k)))
        o = attention(*(x.flatten(0, 1).transpose(1, 2) for x in (q, k, v)))
        update: Tensor = self.out(o.transpose(1, 2).reshape(*qkv.shape[:2], -1))
        return update


class SpaceTimeBlock(nn.Module):
    """Attentions of several reaches, text cross-attention and perceptron, each modulated before and gated after."""

    def __init__(
        self, *, width: int, heads: int, text_dim: int, mlp_hidden: int, modulation_rank: int | None,
        reaches: Sequence[Reach],
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm = LayerNorm()
        self.modulation = block_modulation(width=width, rank=modulation_rank, parts=len(reaches) + 2)
        self.attentions = nn.ModuleDict(
            {reach: (SelfAttention if reach == "full" else RunAttention)(width=width, heads=heads) for reach in reaches}
        )
        self.cross_attention = CrossAttention(width=width, heads=heads, text_dim=text_dim)
        self.mlp = MLP(width=width, hidden=mlp_hidden)

    def forward(self, x_BSD: Tensor, space_time: SpaceTime) -> Tensor:
        """The residual stream (B, S, D) after this block."""
        context = space_time.context
        chunks = iter(context.levels.by_token(self.modulation(context.conditioning_NA)))
        x = x_BSD if context.places_SD is None else x_BSD + context.places_SD
        for reach in self.attentions:
            shift, scale, gate = next(chunks), next(chunks), next(chunks)
            x = gated_residual(x, gate, self._attend(reach, modulate(self.norm(x), shift, scale), space_time))
        shift, scale, gate = next(chunks), next(chunks), next(chunks)
        text = self.cross_attention(modulate(self.norm(x), shift, scale), context.text_BLD, context.mask_B11L)
        x = gated_residual(x, gate, text)
        shift, scale, gate = next(chunks), next(chunks), next(chunks)
        return gated_residual(x, gate, self.mlp(modulate(self.norm(x), shift, scale)))

    def _attend(self, reach: str, x_BSD: Tensor, space_time: SpaceTime) -> Tensor:
        module = self.attentions[reach]
        if reach == "full":
            update: Tensor = module(x_BSD, *space_time.context.rope)
        elif reach == "spatial":
            update = module(x_BSD, *space_time.across_frame)
        else:
            lines = to_lines(x_BSD, frames=space_time.context.grid[0])
            update = from_lines(module(lines, *space_time.along_time), batch=len(x_BSD))
        return update
