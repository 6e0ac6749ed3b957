"""Computes the exact denoiser of a mixture of Gaussians, and the exact end of its solutions.

The data are numbers. In one dimension, solutions of the sampling equation never cross, so each stays at its quantile
of the noisy distribution. Its cumulative distribution is known: no fine-stepped reference is needed.
"""

import torch
from torch import Tensor

MEANS, STDS, WEIGHTS = (torch.tensor(numbers, dtype=torch.float64) for numbers in (
    [-1.0, 0.4, 1.2], [0.3, 0.1, 0.25], [0.3, 0.3, 0.4],
))  # fmt: skip
QUANTILES = torch.tensor([0.05, 0.2, 0.45, 0.7, 0.9], dtype=torch.float64)


class Mixture:
    """D(x; sigma) on the path of EDM or of flow matching; counts its calls."""

    def __init__(self, *, flow: bool) -> None:
        self.flow, self.calls = flow, 0

    def scale(self, sigma: float) -> float:
        """What clean numbers are multiplied by."""
        return 1 - sigma if self.flow else 1.0

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        """The mean of clean given x: over the parts, weighted by how likely each made x."""
        self.calls += 1
        scale, variance, off = self.scale(sigma), *self._of_parts(x, sigma)
        likely = (WEIGHTS.log() - variance.log() / 2 - off**2 / variance / 2).softmax(-1)
        return (likely * (MEANS + scale * STDS**2 / variance * off)).sum(-1)

    def at(self, sigma: float) -> Tensor:
        """Where the solutions of all `QUANTILES` are at this noise level, by bisection."""
        low, high = torch.full_like(QUANTILES, -1e3), torch.full_like(QUANTILES, 1e3)
        for _ in range(100):
            middle = (low + high) / 2
            variance, off = self._of_parts(middle, sigma)
            below = (WEIGHTS * torch.special.ndtr(off / variance.sqrt())).sum(-1) < QUANTILES
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def _of_parts(self, x: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """Each part's variance at this noise level, and how far x is from its mean."""
        scale = self.scale(sigma)
        return scale**2 * STDS**2 + sigma**2, x[..., None] - scale * MEANS
