"""Samples by DPM-Solver++(2M), and defines the logarithm in which its family counts steps.

These solvers step in l = ln(scale / sigma), half the log signal-to-noise ratio. In l, x / scale obeys the same equation
as x in exponential.py. For EDM it is the same l; for flow matching it also stretches the noisy end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from nemo_vfm.diffusion.exponential import exponential_step
from nemo_vfm.diffusion.sampler import Denoiser, FixedSteps, SampleResult

_MIN_SCALE = 1e-6  # flow matching begins at scale 0, whose logarithm there is none of


@dataclass(eq=False, kw_only=True)
class DPM2M(FixedSteps):
    """Second order for one evaluation a step (Lu et al. 2022, arXiv 2211.01095, algorithm 2).

    The first step and a step that ends at sigma = 0 are of first order.

    Args:
        steps: number of steps.
    """

    steps: int = 35

    def draw(self, denoise: Denoiser, noise: Tensor, sigmas: Sequence[float] | Tensor) -> SampleResult:
        """As if D were all the step what the last two estimates say of its middle."""
        levels = [float(sigma) for sigma in sigmas]
        x, before = levels[0] * noise.double(), None
        for sigma, following in pairwise(levels):
            clean, at = denoise(x, sigma), log_ratio(denoise, sigma)
            middle = clean
            if before is not None and following > 0:
                step, step_before = log_ratio(denoise, following) - at, at - before[0]
                middle = clean + step / (2 * step_before) * (clean - before[1])
            x, before = exponential_step(x, sigma, following, middle), (at, clean)
        return SampleResult(x, len(levels) - 1)


def log_ratio(denoise: Denoiser, sigma: float) -> float:
    """l = ln(scale / sigma); infinite at sigma = 0."""
    return math.log(max(denoise.scale(sigma), _MIN_SCALE) / sigma) if sigma > 0 else math.inf
