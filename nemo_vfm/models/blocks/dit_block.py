"""Defines one block of a DiT, and the inputs that every block receives besides the tokens.

Shape letters: B batch, S video tokens, L text tokens, D width of a token, N noise levels, A width of the conditioning.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from nemo_vfm.models.blocks.attention import CrossAttention, SelfAttention
from nemo_vfm.models.blocks.mlp import MLP, Gelu
from nemo_vfm.models.blocks.modulation import block_modulation, gated, modulate
from nemo_vfm.models.blocks.noise_levels import NoiseLevels
from nemo_vfm.models.blocks.norm import LayerNorm
from nemo_vfm.models.blocks.packed_row import Row
from nemo_vfm.models.blocks.rope import Grid


@dataclass(frozen=True, slots=True)
class BlockContext:
    """Inputs shared by all blocks, beside the tokens.

    Args:
        grid: tokens along time, height and width; of packed samples, which have none in common, one line.
        levels: the noise level of each sample, or of each of its latent frames.
        fps_B: its frames per second.
        conditioning_NA: the modulation vector of each noise level (and text), after its SiLU; low-rank modulation
            appends its shared part.
        rope: rotations of the tokens that attention sees here.
        text_BLD: text, hidden tokens zeroed.
        mask_B11L: which of its tokens may be seen.
        image_BLD: image tokens for cross-attention; None without an image.
        places_SD: learned positions of this rank's tokens, added before every block; None where there are none.
        row: where packed samples lie; None where a batch has one shape.
    """

    grid: Grid
    levels: NoiseLevels
    fps_B: Tensor
    conditioning_NA: Tensor
    rope: tuple[Tensor, Tensor]
    text_BLD: Tensor
    mask_B11L: Tensor
    image_BLD: Tensor | None = None
    places_SD: Tensor | None = None
    row: Row | None = None

    @property
    def segments(self) -> tuple[int, ...] | None:
        """Lengths of what attends to itself alone, see `self_attention`."""
        return None if self.row is None else self.row.segments

    def placed(self, x_BSD: Tensor) -> Tensor:
        """Tokens with their learned positions."""
        return x_BSD if self.places_SD is None else x_BSD + self.places_SD


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
