"""Assigns each token the noise level of its sample, or of its latent frame.

Given frames have little or no noise, while the frames to generate have much.
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
from nemo_vfm.parallel.layers.token_layout import split_tokens


@dataclass(frozen=True, slots=True)
class NoiseLevels:
    """The noise levels of a batch.

    Args:
        value_N: the levels, ordered by sample.
        sample_N: index of each level's sample in the batch or pack.
        batch: number of token sequences: 1 if samples are packed.
        level_S: index of each token's level within its sequence; None if a sequence has one level.
    """

    value_N: Tensor
    sample_N: Tensor
    batch: int
    level_S: Tensor | None

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

    Raises:
        ValueError: the number of levels is neither that of samples nor that of token frames.
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
    return NoiseLevels(noise.flatten(), sample_N, batch, _frame_of_token(grid, packed).to(noise.device))


def _frame_of_token(grid: Grid, packed: Row | None) -> Tensor:
    """The latent frame of each token of this rank, (S,); padding counts to the last frame."""
    tokens = [h * w for t, h, w in (packed.grids if packed else [grid]) for _ in range(t)]  # per frame
    tokens[-1] += packed.padding if packed else 0
    return split_tokens(torch.repeat_interleave(torch.arange(len(tokens)), torch.tensor(tokens)), 0)


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
