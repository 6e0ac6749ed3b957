"""Cuts latents into tokens and computes where each is: its patch, rotary position, sample and noise level.

Rotary positions (Su et al. 2021) run along time, height and width. Each axis has its own share of the head's dimension.
The temporal position is in units of `1 / base_fps`, so two clips of one motion at different frame rates get the same
angles at the same times. In a packed sequence padding, which makes it divisible by the ranks, is only at the end: it
attends to itself and to the last sample's text, and its outputs are dropped. A frame may have a noise level of its own:
given frames have little or no noise, while the frames to generate have much.
Shape letters: B batch, C channels, T latent frames, H height, W width, X latent positions of packed samples, N packed
samples or the noise levels of all samples, S tokens of this rank, P numbers of a patch, D width, or the dimension of a
head, R = D / 2 rotations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.core.bounds import LARGEST_THETA, require_between
from nemo_vfm.core.device import has_fast_bf16
from nemo_vfm.core.frame_rate import frame_rate
from nemo_vfm.core.latent_rows import Size, rows_of, videos_of
from nemo_vfm.parallel.layers.token_layout import divisor, span_of_context, split_tokens

Grid = tuple[int, int, int]
Patch = tuple[int, int, int]


def grid_of(shape: tuple[int, ...], patch: Patch) -> tuple[int, int, int]:
    """Tokens along time, height and width for latents of this (B, C, T, H, W) shape.

    Raises:
        ValueError: a side is not a multiple of the patch.
    """
    for name, size, side in zip(("frames", "height", "width"), shape[2:], patch, strict=True):
        if size % side:
            raise ValueError(
                f"latents of shape {tuple(shape)} cannot be cut into patches of {patch}: {name} {size} is not "
                f"divisible by {side}; use {max(size // side, 1) * side} or {(size // side + 1) * side}"
            )
    t, h, w = (size // side for size, side in zip(shape[2:], patch, strict=True))
    return t, h, w


def grids_of(inputs: Mapping[str, tuple[int, ...]], patch: Patch) -> list[Grid]:
    """Of each sample, packed or of one shape."""
    if "sizes_N3" not in inputs:
        return [grid_of(inputs["latents_BCTHW"], patch)] * inputs["latents_BCTHW"][0]
    sides = iter(inputs["sizes_N3"])
    return [grid_of((1, 1, *size), patch) for size in zip(sides, sides, sides, strict=True)]


def patches(latents_BCTHW: Tensor, patch: Patch) -> Tensor:
    """Latents cut into patches (B, S, P), time slowest and width fastest, the channel slowest within a patch."""
    batch, channels = latents_BCTHW.shape[:2]
    t, h, w = grid_of(tuple(latents_BCTHW.shape), patch)
    pt, ph, pw = patch
    x = latents_BCTHW.reshape(batch, channels, t, pt, h, ph, w, pw).permute(0, 2, 4, 6, 1, 3, 5, 7)
    return x.reshape(batch, t * h * w, channels * pt * ph * pw)


def unpatch(tokens_BSD: Tensor, grid: tuple[int, int, int], patch: Patch) -> Tensor:
    """Put tokens that hold one patch each (channel slowest) back into latents (B, C, T, H, W)."""
    (t, h, w), (pt, ph, pw) = grid, patch
    x = tokens_BSD.reshape(len(tokens_BSD), t, h, w, -1, pt, ph, pw).permute(0, 4, 1, 5, 2, 6, 3, 7)
    return x.reshape(x.shape[0], x.shape[1], t * pt, h * ph, w * pw)


def axis_dims(head_dim: int) -> tuple[int, int, int]:
    """How a head's dimension is shared by time, height and width: even numbers, the rest goes to time."""
    side = 2 * (head_dim // 6)
    if head_dim % 2 or side == 0:
        raise ValueError(f"head dimension {head_dim} cannot be split over three axes: it must be even and at least 6")
    return head_dim - 2 * side, side, side


@dataclass(frozen=True, slots=True)
class Rope:
    """3-D rotary positions."""

    head_dim: int  #: D, even, at least 6
    #: the frame rate at which one latent frame is one position; None ignores the frame rate
    base_fps: float | None = 24.0
    theta: float = 10_000.0  #: base of the geometric frequencies
    #: NTK-aware stretch of time, height and width: an axis's theta is multiplied by scale^(d / (d - 2)), so that
    #: positions `scale` times farther than in training fall on angles seen in training
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


Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """Samples side by side."""

    sizes: tuple[Size, ...]  #: latent frames, rows and columns of each
    grids: tuple[Grid, ...]  #: tokens along them
    padding: int  #: tokens at the end that are no sample's
    sample_S: Tensor  #: which sample each of this rank's tokens belongs to; padding is the last one's

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sample."""
        return [math.prod(grid) for grid in self.grids]

    @property
    def segments(self) -> tuple[int, ...]:
        """Lengths of what attends to itself alone: the samples, and the padding where there is some."""
        return (*self.lengths, self.padding) if self.padding else tuple(self.lengths)

    def spans(self) -> list[tuple[int, Span]]:
        """(sample, its tokens among those that this rank's attention sees as queries), of those that are here."""
        *lengths, last = self.lengths
        first, stop = span_of_context(sum(self.segments))
        found, begin = [], 0
        for sample, length in enumerate([*lengths, last + self.padding]):
            here = max(begin, first) - first, min(begin + length, stop) - first
            found += [(sample, here)] if here[0] < here[1] else []
            begin += length
        return found

    @property
    def line(self) -> Grid:
        """All tokens, as if they were one row of one image."""
        return 1, 1, sum(self.segments)

    def patches(self, latents_XC: Tensor, patch: Patch) -> Tensor:
        """(1, tokens of all ranks, P)."""
        return joined([patches(video, patch) for video in videos_of(latents_XC, self.sizes)], self.padding, 1)

    def rotations(self, rope: Rope, fps_N: Tensor) -> tuple[Tensor, Tensor]:
        """See `Rope.table`: of each sample by its own grid and frame rate; of padding, zeros."""
        cos, sin = zip(*(rope.table(grid, fps_N[n : n + 1]) for n, grid in enumerate(self.grids)), strict=True)
        return joined(cos, self.padding, 1), joined(sin, self.padding, 1)

    def latents(self, tokens_1SP: Tensor, patch: Patch) -> Tensor:
        """(X, C), of all tokens of the sequence."""
        parts = tokens_1SP.split_with_sizes(self.segments, 1)
        videos = (unpatch(part, grid, patch) for part, grid in zip(parts, self.grids, strict=False))
        return torch.cat([rows_of(video) for video in videos])


def row(sizes_N3: Tensor, num_positions: int, patch: Patch, device: torch.device) -> Row:
    """Where samples of these sizes lie."""
    sizes: list[Size] = [(t, h, w) for t, h, w in sizes_N3.tolist()]
    if sum(map(math.prod, sizes)) != num_positions:
        raise ValueError(
            f"{len(sizes)} packed samples of sizes {sizes} have {sum(map(math.prod, sizes))} positions, and "
            f"{num_positions} were given"
        )
    grids = [grid_of((1, 1, *size), patch) for size in sizes]
    lengths = [math.prod(grid) for grid in grids]
    padding = -sum(lengths) % divisor()
    lengths[-1] += padding
    sample_S = split_tokens(torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(lengths)), 0)
    return Row(tuple(sizes), tuple(grids), padding, sample_S.to(device, non_blocking=True))


def joined(parts: Sequence[Tensor], padding: int, dim: int) -> Tensor:
    """Parts one after another along `dim`, then zeros."""
    whole = torch.cat(list(parts), dim)
    return F.pad(whole, [0, 0] * (whole.ndim - 1 - dim) + [0, padding]) if padding else whole


def either(latents_BCTHW: Tensor | None, latents_XC: Tensor | None) -> Tensor:
    """Those that are given: latents of one shape or packed ones."""
    latents = latents_XC if latents_BCTHW is None else latents_BCTHW
    assert latents is not None, "expected latents of one shape, or packed ones"
    return latents


def places(grid: Grid, packed: Row | None) -> list[Grid]:
    """The grids whose places tokens have, one after another; each token of padding has one of its own."""
    return [grid] if packed is None else [*packed.grids, *[(1, 1, 1)] * packed.padding]


@dataclass(frozen=True, slots=True)
class NoiseLevels:
    """The noise levels of a batch."""

    value_N: Tensor  #: the levels, ordered by sample
    sample_N: Tensor  #: index of each level's sample in the batch or pack
    batch: int  #: number of token sequences: 1 if samples are packed
    level_S: Tensor | None  #: index of each token's level within its sequence; None if a sequence has one level

    def by_token(self, chunks: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Expand per-level tensors (N, 1, D) to (B, S, D) or (B, 1, D), so that they can be added to tokens."""
        if self.level_S is None:
            return tuple(chunks)
        return tuple(
            _IndexSelect.apply(chunk.unflatten(0, (self.batch, -1)).squeeze(2), self.level_S)  # type: ignore[no-untyped-call]
            for chunk in chunks
        )


def noise_levels(noise: Tensor, num_samples: int, grid: Grid, packed: Row | None) -> NoiseLevels:
    """Match noise levels to samples and tokens.

    Args:
        noise: one level per sample, (B,), or per latent frame, (B, T); flat for packed samples, ordered by sample.
        num_samples: B, or the number of packed samples.
        grid: tokens along time, height and width, if samples are not packed.
        packed: positions of packed samples; None if samples are not packed.
    """
    batch, frames = (1, [t for t, _, _ in packed.grids]) if packed else (num_samples, [grid[0]] * num_samples)
    own = torch.arange(num_samples, device=noise.device)
    expected = (num_samples,), ((sum(frames),) if packed else (num_samples, grid[0]))
    if noise.shape == expected[0]:
        return NoiseLevels(noise, own, batch, packed.sample_S if packed else None)
    if noise.shape != expected[1]:
        raise ValueError(f"noise levels have the shape {tuple(noise.shape)}; expected one per sample, "
                         f"{expected[0]}, or one per latent frame, {expected[1]}")  # fmt: skip
    sample_N = torch.repeat_interleave(own, torch.tensor(frames, device=own.device))
    tokens = [h * w for t, h, w in (packed.grids if packed else [grid]) for _ in range(t)]  # of each frame
    tokens[-1] += packed.padding if packed else 0  # which counts to the last frame
    frame_S = split_tokens(torch.repeat_interleave(torch.arange(len(tokens)), torch.tensor(tokens)), 0)
    return NoiseLevels(noise.flatten(), sample_N, batch, frame_S.to(noise.device))


class _IndexSelect(torch.autograd.Function):
    """x[:, index] with a deterministic backward; the one of indexing sums in any order on a GPU."""

    @staticmethod
    def forward(ctx: Any, x_BND: Tensor, index_S: Tensor) -> Tensor:
        ctx.save_for_backward(index_S)
        ctx.count = x_BND.shape[1]
        return x_BND.index_select(1, index_S)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index_S,), grad = ctx.saved_tensors, grads[0]
        wide = torch.float32 if grad.dtype.itemsize == 2 and not has_fast_bf16() else grad.dtype
        chosen_NS = index_S == torch.arange(ctx.count, device=grad.device)[:, None]
        return (chosen_NS.to(wide) @ grad.to(wide)).to(grad.dtype), None
