"""Samples from pure noise with a denoiser, by solvers of dx/dsigma = (x - D(x; sigma)) / sigma.

The equation is Karras et al. 2022, equation 3, for sigma(t) = t; it holds on the straight path of flow matching too.
The state is fp64: adding small steps to a large state in fp32 loses digits for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

from torch import Tensor

from nemo_vfm.core.bounds import MAX_STEPS, require_between


@runtime_checkable
class Denoiser(Protocol):
    """D(x; sigma)."""

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        """The estimate of the clean latents; x is fp64, and so should the answer be."""

    def scale(self, sigma: float) -> float:
        """What the clean latents are multiplied by on the path: 1 of EDM, 1 - sigma of flow matching."""


@dataclass(frozen=True, slots=True)
class SampleResult:
    """A sample and what it cost."""

    latents: Tensor  #: the sample, fp64
    evaluations: int  #: how often the denoiser was called; guidance may run the network twice as wide for each


@runtime_checkable
class Sampler(Protocol):
    """A way from noise to a sample."""

    def num_steps(self) -> int:
        """Steps to ask the objective's schedule for."""

    def draw(self, denoise: Denoiser, noise: Tensor, sigmas: Sequence[float] | Tensor) -> SampleResult:
        """Follow the noise levels `sigmas` down from x = sigmas[0] * noise."""


@dataclass(eq=False, kw_only=True)
class FixedSteps:
    """Takes as many steps as it is told.

    Args:
        steps: number of steps.
    """

    steps: int

    def __post_init__(self) -> None:
        require_steps(self.steps)

    def num_steps(self) -> int:
        return self.steps


@dataclass(eq=False, kw_only=True)
class Euler(FixedSteps):
    """First order: one evaluation a step.

    Args:
        steps: number of steps.
    """

    steps: int = 50

    def draw(self, denoise: Denoiser, noise: Tensor, sigmas: Sequence[float] | Tensor) -> SampleResult:
        """x += (next - sigma) (x - D) / sigma."""
        levels = [float(sigma) for sigma in sigmas]
        x = levels[0] * noise.double()
        for sigma, following in pairwise(levels):
            x = x + (following - sigma) * (x - denoise(x, sigma)) / sigma
        return SampleResult(x, len(levels) - 1)


@dataclass(eq=False, kw_only=True)
class Heun(FixedSteps):
    """Second order: the slope is the mean of those at both ends of the step (Karras et al. 2022, algorithm 1).

    Two evaluations a step; a step that ends at sigma = 0 has no slope there and stays an Euler step.

    Args:
        steps: number of steps.
    """

    steps: int = 35

    def draw(self, denoise: Denoiser, noise: Tensor, sigmas: Sequence[float] | Tensor) -> SampleResult:
        """Predict with the slope here, evaluate at the *predicted* point, step with the mean slope."""
        levels = [float(sigma) for sigma in sigmas]
        x, evaluations = levels[0] * noise.double(), 0
        for sigma, following in pairwise(levels):
            slope = (x - denoise(x, sigma)) / sigma
            predicted = x + (following - sigma) * slope
            evaluations += 1
            if following > 0:
                slope = (slope + (predicted - denoise(predicted, following)) / following) / 2
                evaluations += 1
            x = x + (following - sigma) * slope
        return SampleResult(x, evaluations)


def require_steps(steps: int) -> int:
    """The number of steps, where it is one."""
    require_between(1, MAX_STEPS, steps=steps)
    return steps
