"""Samples by UniPC, which corrects every step with the evaluation of the next."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.diffusion.dpm_solver import half_log_snr
from nemo_vfm.diffusion.exponential import exponential_step, phi
from nemo_vfm.diffusion.sampler import Denoiser, FixedSteps, SampleResult, require_steps


@dataclass(frozen=True, slots=True)
class _CleanEstimate:
    """An estimate of the clean latents, and where it was made."""

    at: float
    clean: Tensor


@dataclass(eq=False, kw_only=True)
class UniPC(FixedSteps):
    """Predictor and corrector for one evaluation a step (Zhao et al. 2023, arXiv 2302.04867, algorithms 5 to 8).

    The predictor of order p follows the polynomial through the last p estimates. Once the network has been asked at
    the predicted point, the step is done again with that estimate as one more: the corrector of order p + 1.
    The first steps have fewer estimates to look back on, and the last ones before sigma = 0 are of falling order.

    Args:
        steps: number of steps.
        order: p, of the predictor: 1, 2 or 3.
        variant: what replaces e^h - 1 where a step has a single weight: b1 takes h, b2 leaves it. b2 is the better one
            under guidance.
    """

    steps: int = 35
    order: int = 2
    variant: Literal["b1", "b2"] = "b2"

    def __post_init__(self) -> None:
        if self.order not in (1, 2, 3) or self.variant not in ("b1", "b2"):
            raise ValueError(f"order must be 1, 2 or 3, got {self.order}, and variant b1 or b2, got {self.variant!r}")
        require_steps(self.steps)

    def draw(self, denoise: Denoiser, noise: Tensor, sigmas: Sequence[float] | Tensor) -> SampleResult:
        """Evaluate, correct the step that led here, predict the next."""
        levels = [float(sigma) for sigma in sigmas]
        x, seen, last = levels[0] * noise.double(), list[_CleanEstimate](), None
        for number, (sigma, following) in enumerate(pairwise(levels), start=1):
            here = _CleanEstimate(half_log_snr(denoise, sigma), denoise(x, sigma))
            if last is not None:
                x = self._step(denoise, *last, sigma, seen, here)
            left = len(levels) - number if levels[-1] == 0 else self.order
            seen, last = [here, *seen][: min(self.order, left)], (x, sigma)
            x = self._step(denoise, x, sigma, following, seen)
        return SampleResult(x, len(levels) - 1)

    def _step(
        self, denoise: Denoiser, x: Tensor, sigma: float, following: float, seen: list[_CleanEstimate],
        ahead: _CleanEstimate | None = None,
    ) -> Tensor:  # fmt: skip
        """From `sigma` to `following` by the estimates `seen`, newest first, and the one `ahead` if it is known."""
        now, others = seen[0], seen[1:] + ([ahead] if ahead is not None else [])
        result = exponential_step(x, sigma, following, now.clean)
        h = half_log_snr(denoise, following) - now.at
        # What the difference of each other estimate from the newest counts, so that polynomials come out exactly.
        distances, weights = [other.at - now.at for other in others], list[float]()
        if len(distances) == 1:  # the paper's choice, which does not solve for the weight
            width = h if self.variant == "b1" else -math.expm1(-h)
            weights = [width / 2 * h / distances[0]]
        elif distances:
            orders = range(1, len(distances) + 1)
            powers = [[(distance / h) ** k for distance in distances] for k in orders]
            wanted = [h * math.factorial(k) * phi(k + 1, h) for k in orders]
            powers_DD, wanted_D = (torch.tensor(numbers, dtype=torch.float64) for numbers in (powers, wanted))
            weights = torch.linalg.solve(powers_DD, wanted_D).tolist()
        for weight, other in zip(weights, others, strict=True):
            result = result + denoise.scale(following) * weight * (other.clean - now.clean)
        return result
