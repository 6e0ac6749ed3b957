"""Defines convolutions and attentions in which no frame depends on a later one, and an autoencoder's levels of them.

The first frame is repeated as its own past, so an image is a video of one frame. After n halvings of time, 1 + k times
2^n frames become 1 + k. A long video may come in pieces. torch's attention is called directly: that of `parallel/` may
spread a sequence over ranks, and these frames are whole.
Shape letters: B batch, T frames, H height, W width, C channels, N pieces of a position, or heads of attention, D head
dimension, K frames looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.parallel.layers.linear import Linear

_LITTLE = 0.1  # what is left of drawn weights beside passed-on channels


class Past:
    """What layers remember of a video between its pieces; made anew for every video."""

    def __init__(self) -> None:
        self.has_started = False  #: whether the first piece has gone through
        self.frames: dict[nn.Module, Tensor] = {}  #: the last ones that a layer saw


def _still(x_BTHWC: Tensor, num: int) -> Tensor:
    return torch.cat([x_BTHWC[:, :1].expand(-1, num, -1, -1, -1), x_BTHWC], dim=1)


def behind(past: Past | None, layer: nn.Module, x_BTHWC: Tensor, num: int) -> Tensor:
    """x with the `num` frames that this layer saw before it; before the video its first frame stands still."""
    earlier = None if past is None else past.frames.get(layer)
    whole = _still(x_BTHWC, num) if earlier is None else torch.cat([earlier, x_BTHWC], dim=1)
    if past is not None:
        past.frames[layer] = whole[:, whole.shape[1] - num :].clone()  # a view would keep the whole piece
    return whole


def begins(past: Past | None) -> bool:
    """Whether these frames are the first of their video."""
    return past is None or not past.has_started


@torch.no_grad()
def pass_on(matrix: Tensor, drawn: Tensor, count: int, factor: float = 1.0) -> None:
    """Let the first `count` outputs begin as `factor` times the first inputs.

    So an untrained autoencoder is one of wavelets that keeps the lowest bands: 22.8 dB on held-out clips of the demo's
    films (8 x 8 pixels, 4 frames). With drawn biases it began at 14.8 dB (2026-11).
    """
    drawn.mul_(_LITTLE)
    matrix[:count, :count] += factor * torch.eye(count)


class CausalConv(nn.Module):
    """A 1 x 3 x 3 convolution, then 3 x 1 x 1 over a frame and the two before it (Cosmos, 2501.03575, section 4.2).

    In the beginning the second one copies the present frame: the network starts as one of images and learns what the
    past is good for.

    Args:
        in_width: channels that come in.
        out_width: channels that go out.
        passes: so many channels begin as those that come in, with little added; 0 draws all weights as usual.
    """

    def __init__(self, *, in_width: int, out_width: int, passes: int = 0) -> None:
        super().__init__()
        self.space = nn.Conv2d(in_width, out_width, 3, padding=1)
        self.time = Linear(3 * out_width, out_width)
        with torch.no_grad():
            self.time.weight.copy_(torch.cat([torch.zeros(out_width, 2 * out_width), torch.eye(out_width)], dim=1))
            self.time.bias.zero_()
        if passes:
            pass_on(self.space.weight[:, :, 1, 1], self.space.weight, passes)
            self.space.bias = nn.Parameter(torch.zeros(out_width))

    def forward(self, x_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T, H, W, C'), of the size it came in."""
        frames = len(x_BTHWC), x_BTHWC.shape[1]
        # Channels stand last, which to a convolution is the memory format channels_last: nothing is copied.
        x = self.space(x_BTHWC.flatten(0, 1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).unflatten(0, frames)
        x = behind(past, self, x, 2)
        mixed: Tensor = self.time(torch.cat([x[:, :-2], x[:, 1:-1], x[:, 2:]], dim=-1))
        return mixed


class ResidualBlock(nn.Module):
    """Two causal convolutions beside the identity, and nothing at all in the beginning.

    The norm is over the channels of one position alone: a group norm would let frames see each other's statistics.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.conv_1 = CausalConv(in_width=width, out_width=width)
        self.conv_2 = CausalConv(in_width=width, out_width=width)
        nn.init.zeros_(self.conv_2.time.weight)

    def forward(self, x_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T, H, W, C)."""
        update = self.conv_1(F.silu(self.norm_1(x_BTHWC)), past)
        update = self.conv_2(F.silu(self.norm_2(update)), past)
        changed: Tensor = x_BTHWC + update
        return changed


class Down(nn.Module):
    """Two neighbours along each halved axis become channels, and a linear mixes them; it begins as their mean.

    Args:
        space: whether height and width are halved.
        time: whether time is halved; the first frame is paired with itself.
    """

    def __init__(self, *, in_width: int, out_width: int, space: bool, time: bool) -> None:
        super().__init__()
        self.sides = (2 if time else 1, 2 if space else 1)
        cells = self.sides[0] * self.sides[1] ** 2
        self.proj = Linear(in_width * cells, out_width)
        for cell in self.proj.weight.detach().chunk(cells, dim=1):
            pass_on(cell, cell, min(in_width, out_width), 1 / cells)
        nn.init.zeros_(self.proj.bias)

    def forward(self, x_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T', H', W', C')."""
        ft, fs = self.sides
        x = _still(x_BTHWC, 1) if ft == 2 and begins(past) else x_BTHWC
        b, t, h, w, c = x.shape
        cells = x.reshape(b, t // ft, ft, h // fs, fs, w // fs, fs, c).permute(0, 1, 3, 5, 2, 4, 6, 7)
        mixed: Tensor = self.proj(cells.flatten(4))
        return mixed


class Up(nn.Module):
    """The way back of `Down`: a linear makes the neighbours, alike at first; the first frame's twin is left out."""

    def __init__(self, *, in_width: int, out_width: int, space: bool, time: bool) -> None:
        super().__init__()
        self.sides = (2 if time else 1, 2 if space else 1)
        cells = self.sides[0] * self.sides[1] ** 2
        self.proj = Linear(in_width, out_width * cells)
        for cell in self.proj.weight.detach().chunk(cells, dim=0):
            pass_on(cell, cell, min(in_width, out_width))
        nn.init.zeros_(self.proj.bias)

    def forward(self, x_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T', H', W', C')."""
        ft, fs = self.sides
        b, t, h, w, _ = x_BTHWC.shape
        cells = self.proj(x_BTHWC).reshape(b, t, h, w, ft, fs, fs, -1).permute(0, 1, 4, 2, 5, 3, 6, 7)
        x = cells.reshape(b, t * ft, h * fs, w * fs, -1)
        without_twin: Tensor = x[:, 1:] if ft == 2 and begins(past) else x
        return without_twin


class FrameAttention(nn.Module):
    """Every position looks at every other of its frame."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        nn.init.zeros_(self.out.weight)

    def forward(self, x_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T, H, W, C); the past does not matter here."""
        qkv = self.qkv(self.norm(x_BTHWC)).flatten(2, 3).unflatten(3, (3, self.heads, -1)).flatten(0, 1)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        looked = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        update: Tensor = self.out(looked)
        return x_BTHWC + update.view_as(x_BTHWC)


class PastAttention(nn.Module):
    """Every position looks at itself in this frame and the `window - 1` before, which a bias per head tells apart."""

    def __init__(self, *, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, window))
        nn.init.zeros_(self.out.weight)

    def forward(self, x_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T, H, W, C)."""
        num_frames = x_BTHWC.shape[1]
        seen = behind(past, self, self.norm(x_BTHWC), self.window - 1)
        q, k, v = self.qkv(seen).unflatten(4, (3, self.heads, -1)).unbind(4)
        q_BTHWN1D = q[:, -num_frames:].unsqueeze(5)
        k, v_BTHWNKD = (part.unfold(1, self.window, 1).transpose(5, 6) for part in (k, v))
        bias = self.bias.to(q.dtype)[:, None]
        looked = F.scaled_dot_product_attention(q_BTHWN1D, k, v_BTHWNKD, attn_mask=bias).squeeze(5).flatten(4)
        update: Tensor = self.out(looked)
        return x_BTHWC + update


Attention = Literal["none", "space", "space_time"]
Halving = tuple[bool, bool]  # of space, of time


@dataclass(frozen=True, slots=True)
class Middle:
    """What stands between encoder and decoder on either side."""

    width: int  #: channels
    blocks: int  #: residual blocks
    attention: Attention  #: what stands behind the first of them
    window: int  #: latent frames that a position looks at
    heads: int  #: of attention

    def build(self) -> nn.ModuleList:
        """New layers."""
        looking: list[nn.Module] = []
        if self.attention != "none":
            looking.append(FrameAttention(width=self.width, heads=self.heads))
        if self.attention == "space_time":
            looking.append(PastAttention(width=self.width, heads=self.heads, window=self.window))
        first, *others = (ResidualBlock(width=self.width) for _ in range(self.blocks))
        return nn.ModuleList([first, *looking, *others])


class Level(nn.Module):
    """Residual blocks of one size: behind `up` in a decoder, before `down` in an encoder."""

    def __init__(self, width: int, blocks: int, *, up: Up | None = None, down: Down | None = None) -> None:
        super().__init__()
        self.up = up
        self.blocks = nn.ModuleList(ResidualBlock(width=width) for _ in range(blocks))
        self.down = down

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


def _through(layers: nn.Module, x: Tensor, past: Past | None) -> Tensor:
    for layer in layers.children():
        x = layer(x, past)
    return x
