"""Cuts latents into tokens, embeds them, and computes where each is: its position, sample and noise level.

Rotary positions (Su et al. 2021) run along time, height and width. Each axis has its own share of the head's dimension.
The temporal position is in units of `1 / base_fps`, so two clips of one motion at different frame rates get the same
angles at the same times. In a packed sequence padding, which makes it divisible by the ranks, is only at the end: it
attends to itself and to the last sample's text, and its outputs are dropped. A frame may have a noise level of its own:
given frames have little or no noise, while the frames to generate have much.
Rotary positions tell a token how far away the others are, not where it is itself. A model that trains briefly on few
tokens learns the position of things much sooner with absolute positions.
Shape letters: B batch, C channels, T latent frames, H height, W width, X latent positions of packed samples, N packed
samples or the noise levels of all samples, S tokens of this rank, P numbers of a patch, D width, or the dimension of a
head, R = D / 2 rotations, L text tokens, F or K features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.bounds import LARGEST_THETA, frame_rate, require_between
from nemo_vfm.core.device import has_fast_bf16
from nemo_vfm.core.latent_rows import Size, pack_latents, unpack_latents
from nemo_vfm.models.blocks.layers import RMSNorm, rms_normalised
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.layers.token_layout import divisor, span_of_context, split_tokens

Grid = tuple[int, int, int]
Patch = tuple[int, int, int]


def grid_of(shape: tuple[int, ...], patch: Patch) -> tuple[int, int, int]:
    """Tokens along time, height and width for latents (B, C, T, H, W); ValueError where the patch does not divide."""
    for name, size, side in zip(("frames", "height", "width"), shape[2:], patch, strict=True):
        if size % side:
            raise ValueError(
                f"latents of shape {tuple(shape)} cannot be cut into patches of {patch}: {name} {size} is not "
                f"divisible by {side}; use {max(size // side, 1) * side} or {(size // side + 1) * side}"
            )
    t, h, w = (size // side for size, side in zip(shape[2:], patch, strict=True))
    return t, h, w


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
class TokenRow:
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

    def patches(self, latents_XC: Tensor, patch: Patch) -> Tensor:
        """(1, tokens of all ranks, P)."""
        return concatenate_padded(
            [patches(video, patch) for video in unpack_latents(latents_XC, self.sizes)], self.padding, 1
        )

    def rotations(self, rope: Rope, fps_N: Tensor) -> tuple[Tensor, Tensor]:
        """See `Rope.table`: of each sample by its own grid and frame rate; of padding, zeros."""
        cos, sin = zip(*(rope.table(grid, fps_N[n : n + 1]) for n, grid in enumerate(self.grids)), strict=True)
        return concatenate_padded(cos, self.padding, 1), concatenate_padded(sin, self.padding, 1)

    def latents(self, tokens_1SP: Tensor, patch: Patch) -> Tensor:
        """(X, C), of all tokens of the sequence."""
        parts = tokens_1SP.split_with_sizes(self.segments, 1)
        videos = (unpatch(part, grid, patch) for part, grid in zip(parts, self.grids, strict=False))
        return torch.cat([pack_latents(video) for video in videos])


def row(sizes_N3: Tensor, num_positions: int, patch: Patch, device: torch.device) -> TokenRow:
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
    return TokenRow(tuple(sizes), tuple(grids), padding, sample_S.to(device, non_blocking=True))


def concatenate_padded(parts: Sequence[Tensor], padding: int, dim: int) -> Tensor:
    """Parts one after another along `dim`, then zeros."""
    whole = torch.cat(list(parts), dim)
    return F.pad(whole, [0, 0] * (whole.ndim - 1 - dim) + [0, padding]) if padding else whole


def either(latents_BCTHW: Tensor | None, latents_XC: Tensor | None) -> Tensor:
    """Those that are given: latents of one shape or packed ones."""
    latents = latents_XC if latents_BCTHW is None else latents_BCTHW
    assert latents is not None, "expected latents of one shape, or packed ones"
    return latents


def places(grid: Grid, packed: TokenRow | None) -> list[Grid]:
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


def noise_levels(noise: Tensor, num_samples: int, grid: Grid, packed: TokenRow | None) -> NoiseLevels:
    """Match noise levels to samples and tokens.

    There is one per sample, (B,), or per latent frame, (B, T), flat for packed samples; `grid` is of samples that are
    not packed.
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


class PatchEmbedding(nn.Module):
    """Projects each patch to one token.

    A reshape and a linear rather than a convolution with stride: the same arithmetic, and one matrix product
    that tensor parallel and low precision treat as any other.
    """

    def __init__(self, *, in_channels: int, width: int, patch: Patch, bias: bool = True) -> None:
        super().__init__()
        self.proj = Linear(in_channels * patch[0] * patch[1] * patch[2], width, bias=bias)

    def forward(self, patches_BSP: Tensor) -> Tensor:
        """Tokens (B, S, D)."""
        tokens: Tensor = self.proj(patches_BSP)
        return tokens


class AbsolutePositions(nn.Module):
    """Fixed waves over the place in the video, from 0 to 1 along each axis, through a learned linear.

    Each axis has `width // 6` frequencies, evenly spaced up to two periods over the whole axis, as sine and cosine.
    The same share of a video gets the same vector at any size.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.num_frequencies = max(width // 6, 1)
        self.proj = Linear(6 * self.num_frequencies, width, bias=False)

    def forward(self, *grids: Grid) -> Tensor:
        """(S, D), this rank's tokens of one video after another, in each the time slowest and the width fastest."""
        order = torch.arange(1, self.num_frequencies + 1, device=self.proj.weight.device)
        periods = order * (2.0 / self.num_frequencies)
        features = []
        for grid in grids:
            waves = []
            for axis, size in enumerate(grid):
                place = (torch.arange(size, device=order.device) + 0.5) / size
                angles = 2 * math.pi * place[:, None] * periods
                wave = torch.cat([angles.sin(), angles.cos()], dim=1)
                waves.append(wave.reshape([size if i == axis else 1 for i in range(3)] + [-1]).expand(*grid, -1))
            features.append(torch.cat(waves, dim=-1).flatten(0, 2))  # (S, F)
        positions: Tensor = self.proj(split_tokens(torch.cat(features), 0))
        return positions


class LearnedPositions(nn.Module):
    """A learned vector for each frame, row and column; their sum at unit scale, to be added in every block (Cosmos).

    They begin small and not at zero, where dividing by their size would have no gradient worth the name.
    """

    def __init__(self, *, width: int, most: Grid) -> None:
        super().__init__()
        if len(most) != 3 or min(most) < 1:
            raise ValueError(
                f"learned_positions must be three sizes of at least 1 (frames, rows, columns of tokens), got {most}"
            )
        self.most: Grid = (most[0], most[1], most[2])  # a recipe gives a list
        self.frames, self.rows, self.columns = (nn.Parameter(torch.zeros(size, width)) for size in most)

    def forward(self, *grids: Grid) -> Tensor:
        """(S, D), this rank's tokens of one video after another, in each the time slowest and the width fastest."""
        places = []
        for grid in grids:
            if any(size > most for size, most in zip(grid, self.most, strict=True)):
                raise ValueError(
                    f"a video of {grid} tokens (frames, rows, columns) is larger than the model's learned positions "
                    f"{self.most}; use a smaller one, or raise learned_positions"
                )
            _, rows, columns = grid
            place_S = torch.arange(math.prod(grid), device=self.frames.device)
            places.append(torch.stack([place_S // (rows * columns), place_S // columns % rows, place_S % columns], 1))
        frame, row, column = split_tokens(torch.cat(places), 0).unbind(1)
        sum_SD = self.frames[frame] + self.rows[row] + self.columns[column]
        # Cosmos adds its epsilon to the root, not below it: small vectors differ by 1e-5.
        size_S1 = torch.linalg.vector_norm(sum_SD, dim=1, keepdim=True, dtype=torch.float32)
        positions: Tensor = (sum_SD / (size_S1 / sum_SD.shape[1] ** 0.5 + 1e-6)).to(sum_SD.dtype)
        return positions


def sinusoids(noise_B: Tensor, dim: int, scale: float = 1000.0, max_period: float = 10_000.0) -> Tensor:
    """Cosines and sines of `scale * noise_B` at `dim / 2` frequencies from 1 down to 1 / max_period, (B, dim), fp32.

    Both families of objectives give numbers of order one (flow matching sigma in [0, 1], EDM ln(sigma) / 4); a
    factor of 1000 spreads them over the frequencies, as the integer timesteps of Ho et al. 2020 do. Cosmos has none.
    """
    half = dim // 2
    order = torch.arange(half, device=noise_B.device).float()
    angles = scale * noise_B.float()[:, None] * torch.exp(order * (-math.log(max_period) / half))
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class NoiseEmbedding(nn.Module):
    """Sinusoids of the noise level through a two-layer perceptron."""

    def __init__(self, *, width: int, num_frequencies: int = 128, scale: float = 1000.0) -> None:
        super().__init__()
        self.num_frequencies, self.scale = num_frequencies, scale
        self.up = Linear(2 * num_frequencies, width)
        self.down = Linear(width, width)

    def forward(self, noise_B: Tensor) -> Tensor:
        """(B, D)."""
        vector: Tensor = self.down(F.silu(self.up(sinusoids(noise_B, 2 * self.num_frequencies, self.scale))))
        return vector


class SharedNoiseEmbedding(nn.Module):
    """Sinusoids of the model's width, normalised, as the vector e; and a = W2 SiLU(W1 sinusoids), 3 D wide.

    Blocks with modulations of low rank read e and share a. W2 begins at zero.
    """

    def __init__(self, *, width: int, scale: float = 1000.0) -> None:
        super().__init__()
        self.width, self.scale = width, scale
        self.norm = RMSNorm(dim=width)
        self.hidden = Linear(width, width, bias=False)
        self.shared = Linear(width, 3 * width, bias=False)

    def forward(self, noise_B: Tensor) -> tuple[Tensor, Tensor]:
        """e (B, D) and a (B, 3 D)."""
        waves_BD = sinusoids(noise_B, self.width, self.scale)
        shared: Tensor = self.shared(F.silu(self.hidden(waves_BD)))
        vector: Tensor = self.norm(waves_BD)
        return vector, shared


class TextProjection(nn.Module):
    """Projects text tokens to the width of cross-attention by a linear and a GELU, as in Cosmos 2.5."""

    def __init__(self, text_dim: int, width: int) -> None:
        super().__init__()
        self.proj = Linear(text_dim, width)

    def forward(self, text_BLD: Tensor) -> Tensor:
        """(B, L, width)."""
        return F.gelu(self.proj(text_BLD))


def mask_text(text_BLD: Tensor, text_mask_BL: Tensor, *, as_given: bool = False) -> tuple[Tensor, Tensor]:
    """Text at unit scale with hidden tokens zeroed, and the mask that attention uses.

    A sample without a real token sees all its tokens, which are zero and so contribute zero values: a softmax over
    nothing is 0 / 0 in some attention kernels and zero in others. Text `as_given` keeps its scale, and attention sees
    its hidden tokens like all others: so Cosmos was trained.
    """
    text = text_BLD if as_given else rms_normalised(text_BLD)
    seen_BL = text_mask_BL | ~text_mask_BL.any(dim=1, keepdim=True) | as_given
    return text * text_mask_BL.unsqueeze(2).to(text_BLD.dtype), seen_BL[:, None, None, :]


_GOLDEN = (math.sqrt(5) - 1) / 2


class NoiseUncertainty(nn.Module):
    """u(noise level): one learned weight for each of K waves of it, zero at first (Karras et al. 2024, EDM2, eq. 21).

    EDM2 draws frequencies from N(0, 1) and phases evenly; these are the quantiles of the same distributions, so that
    there is nothing to draw, to keep or to send. The sum is taken in fp32 whatever autocast says: u is a logarithm, and
    bf16 knows it to three digits.
    """

    def __init__(self, *, num_features: int = 128) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_features))

    def forward(self, noise: Tensor) -> Tensor:
        """The shape of `noise`, fp32."""
        return (self.features(noise) * self.weight.float()).sum(-1)

    def features(self, noise: Tensor) -> Tensor:
        """Cosines of unit mean square over all phases, K for each noise level, fp32."""
        order = torch.arange(len(self.weight), device=noise.device, dtype=torch.float32)
        frequencies = torch.special.ndtri((order + 0.5) / len(order))
        angles = noise.float().unsqueeze(-1) * frequencies + order * _GOLDEN % 1
        return math.sqrt(2) * torch.cos(2 * math.pi * angles)


def with_uncertainty(out_BSP: Tensor, uncertainty: Tensor, channels: int) -> Tensor:
    """Tokens whose patches have u as one more channel, the last.

    Each token carries it, rather than each sample once, so that a layout that splits tokens over ranks sums its
    gradient as it sums every other.
    """
    u_BS = uncertainty.unsqueeze(1) if uncertainty.ndim == 1 else uncertainty
    volume = out_BSP.shape[2] // channels
    return torch.cat([out_BSP, u_BS.unsqueeze(2).expand(*out_BSP.shape[:2], volume)], dim=2)
