"""Samples by DPM-Solver++(2M), and defines the half log signal-to-noise ratio in which its family counts steps.

These solvers step in l = ln(scale / sigma), where x = scale * clean + sigma * noise; D is the network's estimate of the
clean latents. In l, x / scale obeys the same equation as x in exponential.py. For EDM it is the same l; for flow
matching it also stretches the noisy end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from nemo_vfm.diffusion.exponential import exponential_step
from nemo_vfm.diffusion.sampler import Denoiser, FixedSteps, SampleResult

_MIN_SCALE = 1e-6  # flow matching starts at scale 0, where the logarithm is undefined


@dataclass(eq=False, kw_only=True)
class DPM2M(FixedSteps):
    """Second order for one evaluation a step (Lu et al. 2022, arXiv 2211.01095, algorithm 2).

    The first step and a step that ends at sigma = 0 are of first order.

    Args:
        steps: number of steps.
    """

    steps: int = 35

    def draw(self, denoise: Denoiser, noise: Tensor, sigmas: Sequence[float] | Tensor) -> SampleResult:
        """Takes D as constant over the step, extrapolated to its midpoint from the last two estimates."""
        levels = [float(sigma) for sigma in sigmas]
        x, previous = levels[0] * noise.double(), None
        for sigma, following in pairwise(levels):
            clean, at = denoise(x, sigma), half_log_snr(denoise, sigma)
            midpoint_clean = clean
            if previous is not None and following > 0:
                previous_at, previous_clean = previous
                step, previous_step = half_log_snr(denoise, following) - at, at - previous_at
                midpoint_clean = clean + step / (2 * previous_step) * (clean - previous_clean)
            # A step with D constant is the same in l and in -ln sigma: scale is 1 (EDM) or 1 - sigma (flow matching),
            # and scale' - scale sigma' / sigma = 1 - sigma' / sigma for both.
            x, previous = exponential_step(x, sigma, following, midpoint_clean), (at, clean)
        return SampleResult(x, len(levels) - 1)


def half_log_snr(denoise: Denoiser, sigma: float) -> float:
    """l = ln(scale / sigma); infinite at sigma = 0."""
    return math.log(max(denoise.scale(sigma), _MIN_SCALE) / sigma) if sigma > 0 else math.inf
