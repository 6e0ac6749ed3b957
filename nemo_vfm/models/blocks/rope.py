"""Computes 3-D rotary positions from a token grid and its frame rate, and rotates heads by them.

Rotary positions (Su et al. 2021) run along time, height and width. Each axis has its own share of the head's dimension.
The temporal position is in units of `1 / base_fps`. So two clips of one motion at different frame rates get the same
angles at the same times.
Shape letters: B batch, S tokens, H heads, D head dimension, R = D / 2 rotations.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.core.bounds import LARGEST_THETA, require_between
from nemo_vfm.core.frame_rate import frame_rate

Grid = tuple[int, int, int]


def axis_dims(head_dim: int) -> tuple[int, int, int]:
    """How a head's dimension is shared by time, height and width: even numbers, the rest goes to time.

    Raises:
        ValueError: the head is too small or odd.
    """
    side = 2 * (head_dim // 6)
    if head_dim % 2 or side == 0:
        raise ValueError(f"head dimension {head_dim} cannot be split over three axes: it must be even and at least 6")
    return head_dim - 2 * side, side, side


@dataclass(frozen=True, slots=True)
class Rope:
    """3-D rotary positions.

    Args:
        head_dim: D, even, at least 6.
        base_fps: the frame rate at which one latent frame is one position; None ignores the frame rate.
        theta: base of the geometric frequencies.
        scale: NTK-aware stretch of time, height and width: an axis's theta is multiplied by scale^(d / (d - 2)), so
            that positions `scale` times farther than in training fall on angles seen in training.

    Raises:
        ValueError: a frame rate that cannot be.
    """

    head_dim: int
    base_fps: float | None = 24.0
    theta: float = 10_000.0
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        if self.base_fps is not None:
            frame_rate(self.base_fps, "base_fps")
        require_between(1, LARGEST_THETA, rope_theta=self.theta)
        for axis, scale in enumerate(self.scale):
            require_between(1 / LARGEST_THETA, LARGEST_THETA, **{f"rope_scale.{axis}": scale})

    def frequencies(self, axis: int, like: Tensor) -> Tensor:
        """The d / 2 frequencies of an axis (0 time, 1 height, 2 width) on the device of `like`, fp32."""
        dim = axis_dims(self.head_dim)[axis]
        stretch = self.scale[axis] ** (dim / (dim - 2)) if dim > 2 else 1.0
        exponent = torch.arange(0, dim, 2, device=like.device).float() / dim
        return (self.theta * stretch) ** -exponent

    def angles(self, grid: Grid, fps_B: Tensor) -> Tensor:
        """Angles (B, S, R), fp32, tokens with time slowest and width fastest."""
        t, h, w = grid
        rate_B = torch.ones_like(fps_B) if self.base_fps is None else self.base_fps / fps_B.float()
        places_BT = torch.arange(t, device=fps_B.device) * rate_B.float()[:, None]
        time = (places_BT[:, :, None] * self.frequencies(0, fps_B))[:, :, None, None]
        rows = (torch.arange(h, device=fps_B.device)[:, None] * self.frequencies(1, fps_B))[None, None, :, None]
        columns = (torch.arange(w, device=fps_B.device)[:, None] * self.frequencies(2, fps_B))[None, None, None]
        parts = [part.expand(len(fps_B), t, h, w, -1) for part in (time, rows, columns)]
        return torch.cat(parts, dim=-1).flatten(1, 3)

    def table(self, grid: Grid, fps_B: Tensor) -> tuple[Tensor, Tensor]:
        """What `rotate` multiplies by: cosines and signed sines, each (B, S, 1, D), fp32.

        The halves of D are (angle, angle) for the cosines and (-angle, angle) for the sines, which turns the rotation
        into x cos + swap(x) sin with no negation of x.
        """
        angles_BSR = self.angles(grid, fps_B)
        cos, sin = angles_BSR.cos(), angles_BSR.sin()
        return torch.cat([cos, cos], dim=-1)[:, :, None], torch.cat([-sin, sin], dim=-1)[:, :, None]


def rotate(x_BSHD: Tensor, cos_BS1D: Tensor, sin_BS1D: Tensor) -> Tensor:
    """Rotate dimension i against i + D/2 by the table's angles."""
    swapped = x_BSHD.roll(x_BSHD.shape[-1] // 2, dims=-1)
    return torch.addcmul(x_BSHD * cos_BS1D, swapped, sin_BS1D)
