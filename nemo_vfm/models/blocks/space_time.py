"""Defines one block of an ST-DiT: full attention, attention along time and attention within each frame.

arXiv 2503.12964, 4.6. Full attention runs over all ranks that share a sequence. Attention along time is local, between
two exchanges. Attention within a frame is local on the rank that has the tokens (4.5.1).
Shape letters: B batch, S tokens, D width, H heads, E head dimension, R tokens of one run, G its group of runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from nemo_vfm.models.blocks.attention import CrossAttention, SelfAttention, SelfProjections
from nemo_vfm.models.blocks.dit_block import BlockContext
from nemo_vfm.models.blocks.mlp import MLP
from nemo_vfm.models.blocks.modulation import block_modulation, gated, modulate
from nemo_vfm.models.blocks.norm import LayerNorm
from nemo_vfm.models.blocks.rope import rotate
from nemo_vfm.parallel.layers.parallel_attention import attention
from nemo_vfm.parallel.layers.temporal_all_to_all import from_lines, to_lines

Reach = Literal["full", "temporal", "spatial"]
Rotations = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class SpaceTime:
    """What blocks of an ST-DiT are told besides the tokens.

    Args:
        context: what blocks of a DiT are told.
        along_time: rotations of a line's frames, (B, 1, T, 1, E).
        across_frame: of a frame's places, (1, 1, P, 1, E).
    """

    context: BlockContext
    along_time: Rotations
    across_frame: Rotations


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
    """Attentions of several reaches, text cross-attention and perceptron, each modulated before and gated after.

    Args:
        reaches: the attentions among video tokens, in order.
    """

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
        x = context.placed(x_BSD)
        for reach in self.attentions:
            shift, scale, gate = next(chunks), next(chunks), next(chunks)
            x = gated(x, gate, self._attended(reach, modulate(self.norm(x), shift, scale), space_time))
        shift, scale, gate = next(chunks), next(chunks), next(chunks)
        text = self.cross_attention(modulate(self.norm(x), shift, scale), context.text_BLD, context.mask_B11L)
        x = gated(x, gate, text)
        shift, scale, gate = next(chunks), next(chunks), next(chunks)
        return gated(x, gate, self.mlp(modulate(self.norm(x), shift, scale)))

    def _attended(self, reach: str, x_BSD: Tensor, space_time: SpaceTime) -> Tensor:
        module = self.attentions[reach]
        if reach == "full":
            update: Tensor = module(x_BSD, *space_time.context.rope)
        elif reach == "spatial":
            update = module(x_BSD, *space_time.across_frame)
        else:
            lines = to_lines(x_BSD, frames=space_time.context.grid[0])
            update = from_lines(module(lines, *space_time.along_time), batch=len(x_BSD))
        return update
