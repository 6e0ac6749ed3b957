# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Computes which noise level each token has: that of its sample, or that of its latent frame.

Frames that are given to a model carry hardly any noise beside frames that it has to make.
Shape letters: B batch, N noise levels of all samples, T latent frames, S tokens of this rank, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nemo_vfm.core.device import has_fast_bf16
from nemo_vfm.models.blocks.packed_row import Row
from nemo_vfm.models.blocks.rope import Grid
from nemo_vfm.parallel.context.token_layout import split_tokens


@dataclass(frozen=True, slots=True)
class NoiseLevels:
    """The noise levels of a batch.

    Args:
        value_N: the levels, one sample after another.
        sample_N: which sample of the batch, or of the pack, each belongs to.
        batch: sequences of tokens: one where samples are packed.
        level_S: which level of its sequence each token has; None where a sequence has one.
    """

    value_N: Tensor
    sample_N: Tensor
    batch: int
    level_S: Tensor | None

    def by_token(self, chunks: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What is said of each level, (N, 1, D), as (B, S, D) or (B, 1, D), so that it can be added to tokens."""
        if self.level_S is None:
            return tuple(chunks)
        return tuple(
            _Spread.apply(chunk.unflatten(0, (self.batch, -1)).squeeze(2), self.level_S)  # type: ignore[no-untyped-call]
            for chunk in chunks
        )


def noise_levels(noise: Tensor, num_samples: int, grid: Grid, packed: Row | None) -> NoiseLevels:
    """Whose the levels are.

    Args:
        noise: one for each sample, (B,), or for each latent frame, (B, T); of packed samples, as many numbers one
            sample after another.
        num_samples: B, or samples of the pack.
        grid: tokens along time, height and width, of samples that are not packed.
        packed: where packed samples lie.

    Raises:
        ValueError: neither as many levels as samples nor as many as frames of tokens.
    """
    batch, frames = (1, [t for t, _, _ in packed.grids]) if packed else (num_samples, [grid[0]] * num_samples)
    own = torch.arange(num_samples, device=noise.device)
    expected = (num_samples,), ((sum(frames),) if packed else (num_samples, grid[0]))
    if noise.shape == expected[0]:
        return NoiseLevels(noise, own, batch, packed.sample_S if packed else None)
    if noise.shape != expected[1]:
        raise ValueError(f"noise levels have the shape {tuple(noise.shape)}; expected one for each sample, "
                         f"{expected[0]}, or one for each latent frame of a token, {expected[1]}")  # fmt: skip
    sample_N = torch.repeat_interleave(own, torch.tensor(frames, device=own.device))
    return NoiseLevels(noise.flatten(), sample_N, batch, _frame_of_token(grid, packed).to(noise.device))


def _frame_of_token(grid: Grid, packed: Row | None) -> Tensor:
    """(S,), of this rank's tokens; those of padding are of the last frame."""
    tokens = [h * w for t, h, w in (packed.grids if packed else [grid]) for _ in range(t)]  # of each frame
    tokens[-1] += packed.padding if packed else 0
    return split_tokens(torch.repeat_interleave(torch.arange(len(tokens)), torch.tensor(tokens)), 0)


class _Spread(torch.autograd.Function):
    """x[:, index]; backward adds up in a fixed order, where that of indexing adds as threads come by on a GPU."""

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
