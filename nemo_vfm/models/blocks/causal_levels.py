"""Builds the autoencoder's `Encoder` (wavelet bands to latents) and `Decoder` (back) from equally numbered levels.

`levels.0` is the one next to the pixels in both, so that a deeper autoencoder has the names of a shallower one.
Shape letters: B batch, T frames, H height, W width, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from nemo_vfm.models.blocks.causal_attention import FrameAttention, PastAttention
from nemo_vfm.models.blocks.causal_conv import CausalConv, Down, Past, ResidualBlock, Up

Attention = Literal["none", "space", "space_time"]
Halving = tuple[bool, bool]  # of space, of time


@dataclass(frozen=True, slots=True)
class Middle:
    """What stands between encoder and decoder on either side.

    Args:
        width: channels.
        blocks: residual blocks.
        attention: what stands behind the first of them.
        window: latent frames that a position looks at.
        heads: of attention.
    """

    width: int
    blocks: int
    attention: Attention
    window: int
    heads: int

    def build(self) -> nn.ModuleList:
        """New layers."""
        looking: list[nn.Module] = []
        if self.attention != "none":
            looking.append(FrameAttention(width=self.width, heads=self.heads))
        if self.attention == "space_time":
            looking.append(PastAttention(width=self.width, heads=self.heads, window=self.window))
        first, *others = _blocks(self.width, self.blocks)
        return nn.ModuleList([first, *looking, *others])


class Level(nn.Module):
    """Residual blocks of one size: behind `up` in a decoder, before `down` in an encoder."""

    def __init__(self, width: int, blocks: int, *, up: Up | None = None, down: Down | None = None) -> None:
        super().__init__()
        self.up, self.blocks, self.down = up, nn.ModuleList(_blocks(width, blocks)), down

    def forward(self, x_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T', H', W', C')."""
        x = x_BTHWC if self.up is None else self.up(x_BTHWC, past)
        x = _through(self.blocks, x, past)
        smaller: Tensor = x if self.down is None else self.down(x, past)
        return smaller


class Encoder(nn.Module):
    """Levels of residual blocks, each of which ends smaller."""

    def __init__(
        self, channels: int, out_channels: int, widths: Sequence[int], halvings: Sequence[Halving], blocks: int,
        middle: Middle,
    ) -> None:  # fmt: skip
        super().__init__()
        self.enter = CausalConv(in_width=channels, out_width=widths[0], passes=min(channels, widths[0]))
        self.levels = nn.ModuleList(
            Level(here, blocks, down=Down(in_width=here, out_width=deeper, space=space, time=time))
            for here, deeper, (space, time) in zip(widths, widths[1:], halvings, strict=False)
        )
        self.middle = middle.build()
        self.leave = CausalConv(in_width=widths[-1], out_width=out_channels, passes=min(widths[-1], out_channels))

    def forward(self, x_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T', H', W', C')."""
        x = self.enter(x_BTHWC, past)
        for level in self.levels:
            x = level(x, past)
        latents: Tensor = self.leave(_through(self.middle, x, past), past)
        return latents


class Decoder(nn.Module):
    """The levels of the encoder backwards, each of which begins larger."""

    def __init__(
        self, channels: int, out_channels: int, widths: Sequence[int], halvings: Sequence[Halving], blocks: int,
        middle: Middle,
    ) -> None:  # fmt: skip
        super().__init__()
        self.enter = CausalConv(in_width=channels, out_width=widths[-1], passes=min(channels, widths[-1]))
        self.middle = middle.build()
        self.levels = nn.ModuleList(
            Level(here, blocks, up=Up(in_width=deeper, out_width=here, space=space, time=time))
            for here, deeper, (space, time) in zip(widths, widths[1:], halvings, strict=False)
        )
        self.leave = CausalConv(in_width=widths[0], out_width=out_channels, passes=min(widths[0], out_channels))

    def forward(self, latents_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T, H, W, C)."""
        x = _through(self.middle, self.enter(latents_BTHWC, past), past)
        for level in reversed(self.levels):
            x = level(x, past)
        bands: Tensor = self.leave(x, past)
        return bands


def _blocks(width: int, count: int) -> list[ResidualBlock]:
    return [ResidualBlock(width=width) for _ in range(count)]


def _through(layers: nn.Module, x: Tensor, past: Past | None) -> Tensor:
    for layer in layers.children():
        x = layer(x, past)
    return x
