"""Computes where each sample's tokens are in a packed sequence, on this rank and over all ranks.

Padding tokens, which make the sequence divisible by the ranks, are only at its end. They attend to each other and to
the last sample's text, and their outputs are dropped.
Shape letters: N samples, X latent positions, C channels, S tokens of this rank, P numbers of a patch, D width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.core.latent_rows import Size, rows_of, videos_of
from nemo_vfm.models.blocks.patch import Patch, grid_of, patches, unpatch
from nemo_vfm.models.blocks.rope import Grid, Rope
from nemo_vfm.parallel.layers.token_layout import divisor, span_of_context, split_tokens

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """Samples side by side.

    Args:
        sizes: latent frames, rows and columns of each.
        grids: tokens along them.
        padding: tokens at the end that are no sample's.
        sample_S: which sample each of this rank's tokens belongs to; padding is the last one's.
    """

    sizes: tuple[Size, ...]
    grids: tuple[Grid, ...]
    padding: int
    sample_S: Tensor

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
    """Where samples of these sizes lie.

    Args:
        num_positions: latent positions that there are.

    Raises:
        ValueError: they are not those of these sizes, or a size cannot be cut into patches.
    """
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


def either(latents_BCTHW: Tensor | None, latents_XC: Tensor | None) -> Tensor:
    """Those that are given: latents of one shape or packed ones."""
    latents = latents_XC if latents_BCTHW is None else latents_BCTHW
    assert latents is not None, "expected latents of one shape, or packed ones"
    return latents


def places(grid: Grid, packed: Row | None) -> list[Grid]:
    """The grids whose places tokens have, one after another; each token of padding has one of its own."""
    return [grid] if packed is None else [*packed.grids, *[(1, 1, 1)] * packed.padding]


def joined(parts: Sequence[Tensor], padding: int, dim: int) -> Tensor:
    """Parts one after another along `dim`, then zeros."""
    whole = torch.cat(list(parts), dim)
    return F.pad(whole, [0, 0] * (whole.ndim - 1 - dim) + [0, padding]) if padding else whole
