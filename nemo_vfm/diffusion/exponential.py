"""Samples by exponential integrators, which solve the linear part of the equation exactly.

With l = -ln sigma, dx/dsigma = (x - D) / sigma becomes dx/dl = D - x, for EDM and flow matching alike. Over a step of h
its solution is e^-h x plus the integral of e^-(h - t) D. So only D has to be approximated, and D changes slowly: near
sigma = 0 it is the sample itself (Zhang et al. 2023, arXiv 2308.02157, section 3).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from nemo_vfm.diffusion.sampler import Denoiser, FixedSteps, SampleResult


@dataclass(eq=False, kw_only=True)
class RES2AB(FixedSteps):
    """Second order for one evaluation a step: D goes on as it went over the step before (Adams-Bashforth).

    The first step, which has none before it, and a step that ends at sigma = 0 are of first order.

    Below about 15 steps it is worse than Euler on the schedule of EDM, since D is extended along a line over steps that
    are too long for it: an error of 0.54 against 0.36 at 10 steps, 0.017 against 0.071 at 36
    (docs/how-to/video/sampling.md). Take DPM2M or UniPC there.

    Args:
        steps: number of steps.
    """

    steps: int = 35

    def draw(self, denoise: Denoiser, noise: Tensor, sigmas: Sequence[float] | Tensor) -> SampleResult:
        """D(t) = D + t (D - D before) / (length of the step before)."""
        levels = [float(sigma) for sigma in sigmas]
        x, slope = levels[0] * noise.double(), None
        previous: tuple[float, Tensor] | None = None
        for sigma, following in pairwise(levels):
            clean = denoise(x, sigma)
            if previous is not None:
                previous_sigma, previous_clean = previous
                slope = (clean - previous_clean) / math.log(previous_sigma / sigma)
            x, previous = exponential_step(x, sigma, following, clean, slope), (sigma, clean)
        return SampleResult(x, len(levels) - 1)


@dataclass(eq=False, kw_only=True)
class RES2Mid(FixedSteps):
    """Second order for two evaluations a step: D goes on as it goes to the middle of the step.

    A step that ends at sigma = 0 has no middle in ln sigma; it is of first order and takes one evaluation.

    Args:
        steps: number of steps.
    """

    steps: int = 18

    def draw(self, denoise: Denoiser, noise: Tensor, sigmas: Sequence[float] | Tensor) -> SampleResult:
        """D(t) = D + t (D in the middle - D) / (half a step)."""
        levels = [float(sigma) for sigma in sigmas]
        x, evaluations = levels[0] * noise.double(), 0
        for sigma, following in pairwise(levels):
            clean, slope = denoise(x, sigma), None
            evaluations += 1
            if following > 0:
                middle = math.sqrt(sigma * following)
                slope = (denoise(exponential_step(x, sigma, middle, clean), middle) - clean) / math.log(sigma / middle)
                evaluations += 1
            x = exponential_step(x, sigma, following, clean, slope)
        return SampleResult(x, evaluations)


def exponential_step(x: Tensor, sigma: float, following: float, clean: Tensor, slope: Tensor | None = None) -> Tensor:
    """The exact solution after one step if D were `clean` + t `slope`; at `following` = 0 the slope has no say."""
    kept = following / sigma
    if slope is None or following == 0:
        return kept * x + (1 - kept) * clean
    h = math.log(sigma / following)
    return kept * x + (1 - kept) * clean + h * h * phi(2, h) * slope


def phi(order: int, h: float) -> float:
    """phi_k(-h), the integral over u in 0..1 of e^-(1-u)h u^(k-1) / (k-1)!: what a term t^(k-1) of D adds to a step.

    From phi_1 = (1 - e^-h) / h upwards, phi_(k+1) = (1/k! - phi_k) / h; that loses all digits for small h, where the
    series sum of (-h)^n / (n+k)! takes its place.
    """
    if h < 1:
        return sum((-h) ** n / math.factorial(n + order) for n in range(20))
    value = -math.expm1(-h) / h
    for k in range(1, order):
        value = (1 / math.factorial(k) - value) / h
    return value
