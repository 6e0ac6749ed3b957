"""Applies convolutions in which no frame depends on a later one; a long video may come in pieces.

The first frame is repeated as its own past, so an image is a video of one frame. After n halvings of time, 1 + k times
2^n frames become 1 + k.
Shape letters: B batch, T frames, H height, W width, C channels, N pieces of a position.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.parallel.layers.linear import Linear

_LITTLE = 0.1  # what is left of drawn weights beside passed-on channels


class Past:
    """What layers remember of a video between its pieces; made anew for every video."""

    def __init__(self) -> None:
        self.has_started = False  #: whether the first piece has gone through
        self._frames: dict[nn.Module, Tensor] = {}

    def before(self, layer: nn.Module, x_BTHWC: Tensor, num: int) -> Tensor:
        """x behind the `num` frames that this layer saw before it."""
        earlier = self._frames.get(layer)
        whole = _still(x_BTHWC, num) if earlier is None else torch.cat([earlier, x_BTHWC], dim=1)
        self._frames[layer] = whole[:, whole.shape[1] - num :].clone()  # a view would keep the whole piece
        return whole


def _still(x_BTHWC: Tensor, num: int) -> Tensor:
    return torch.cat([x_BTHWC[:, :1].expand(-1, num, -1, -1, -1), x_BTHWC], dim=1)


def behind(past: Past | None, layer: nn.Module, x_BTHWC: Tensor, num: int) -> Tensor:
    """x with the `num` frames before it; without a past the video is whole, and its first frame stands still there."""
    return _still(x_BTHWC, num) if past is None else past.before(layer, x_BTHWC, num)


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
