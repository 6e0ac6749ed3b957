"""Defines the training objectives: the network's inputs, its loss and its estimate of the clean latents.

Both families have one set of methods. They share D(x; sigma), the estimate of the clean latents, and the path x =
scale(sigma) clean + sigma noise. On it, dx/dsigma = (x - D) / sigma. EDM keeps the clean latents at scale 1 (Karras et
al. 2022, equation 1 with sigma(t) = t). Flow matching fades them with 1 - sigma (Lipman et al. 2023, equation 22; Liu
et al. 2023, equation 1), where (x - D) / sigma is noise - clean.
Shape letters: B batch; latents are (B, C, T, H, W).
"""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

_MAX_DRAWS = 10_000


@runtime_checkable
class Shift(Protocol):
    """A shift that depends on the size of the sample."""

    def factor(self, size_THW: Sequence[int]) -> float:
        """s for latents of this many frames, rows and columns; an image has one frame."""


@runtime_checkable
class Objective(Protocol):
    """One way to learn to denoise."""

    def draw(self, generator: torch.Generator, size_THW: Sequence[int]) -> Tensor:
        """The noise level of one training sample whose latents have this size, a scalar."""

    def scale(self, sigma: float) -> float:
        """What the clean latents are multiplied by at this noise level."""

    def add_noise(self, clean: Tensor, noise: Tensor, sigma_B: Tensor) -> Tensor:
        """The point of the path at noise level sigma."""

    def inputs(self, noisy: Tensor, sigma_B: Tensor) -> tuple[Tensor, Tensor]:
        """What the network is called with: latents, and the noise level as a number of order one, (B,)."""

    def denoise(self, output: Tensor, noisy: Tensor, sigma_B: Tensor) -> Tensor:
        """D(noisy; sigma): the network's output read as an estimate of the clean latents."""

    def losses(
        self, output: Tensor, clean: Tensor, noise: Tensor, sigma_B: Tensor, made: Tensor | None = None
    ) -> Tensor:
        """The loss of each sample, (B,). Given latents, where `made` (B, 1, T, H, W) is 0, have no loss."""

    def schedule(self, steps: int, size_THW: Sequence[int]) -> Tensor:
        """Noise levels for sampling latents of this size in `steps` steps, (steps + 1,), fp64, from noise down to 0."""

    def fraction(self, sigma_B: Tensor) -> Tensor:
        """The noise level as a number from 0 (clean) to 1 (noise), for bins and plots."""


class FlowMatching:
    """Straight paths between data and noise.

    Args:
        prediction: velocity (the network gives noise - clean) or sample (it gives the clean latents, and the loss is
            still that of the velocity it implies; Li and He 2025 report that this suits wide patches).
        shift: s of sigma' = s sigma / (1 + (s - 1) sigma), above 1 for more noise (Esser et al. 2024, equation 23);
            applied to training draws and to the schedule. A number, or a rule that looks at the sample's size.
        logit_mean: mean of the logit of sigma before the shift (Esser et al. 2024, equation 19).
        logit_std: its standard deviation.
        uniform_fraction: share of draws that are uniform instead, so that both ends are seen.
        min_sigma: below it the velocity implied by a predicted sample is taken as if at it.
        noise_weight: w of the loss weight 1 + w sigma.
        timesteps: n; the network's noise-level input is then floor(n sigma) / n. diffusers' UniPC scheduler has integer
            timesteps, so use 1000 with it. None passes sigma itself.
        drawn: lowest and highest noise level of training; [0.875, 1] for a network that samples only at high levels.
    """

    def __init__(
        self, *, prediction: Literal["velocity", "sample"] = "velocity", shift: float | Shift = 1.0,
        logit_mean: float = 0.0, logit_std: float = 1.0, uniform_fraction: float = 0.1, min_sigma: float = 0.05,
        noise_weight: float = 0.0, timesteps: int | None = None, drawn: tuple[float, float] = (0.0, 1.0),
    ) -> None:  # fmt: skip
        if prediction not in ("velocity", "sample"):
            raise ValueError(f"prediction must be velocity or sample, got {prediction!r}")
        if not isinstance(shift, Shift) and shift <= 0:
            raise ValueError(f"shift must be above 0, got {shift}; 1 shifts nothing")
        if logit_std <= 0 or noise_weight < 0:
            raise ValueError(f"logit_std ({logit_std}) must be above 0 and noise_weight ({noise_weight}) not below")
        if not 0 <= uniform_fraction <= 1 or not 0 < min_sigma < 1:
            raise ValueError(f"uniform_fraction ({uniform_fraction}) and min_sigma ({min_sigma}) must lie in 0..1")
        if timesteps is not None and timesteps < 1:
            raise ValueError(f"timesteps must be at least 1, got {timesteps}; null passes sigma itself")
        self.prediction, self.shift, self.min_sigma, self.noise_weight = prediction, shift, min_sigma, noise_weight
        if not 0 <= drawn[0] < drawn[1] <= 1:
            raise ValueError(f"drawn is {drawn}; give a lower and a higher noise level, both in 0..1")
        self.timesteps, self.drawn = timesteps, drawn
        self.logit_mean, self.logit_std, self.uniform_fraction = logit_mean, logit_std, uniform_fraction

    def draw(self, generator: torch.Generator, size_THW: Sequence[int]) -> Tensor:
        """A shifted logit-normal number, or a shifted uniform one; drawn again until it is in the range."""
        for _ in range(_MAX_DRAWS):
            which, uniform = torch.rand(2, generator=generator)
            normal = torch.randn((), generator=generator) * self.logit_std + self.logit_mean
            sigma = uniform if which < self.uniform_fraction else torch.sigmoid(normal)
            sigma = shift_sigma(sigma, self.shift, size_THW)
            if self.drawn[0] <= sigma <= self.drawn[1]:
                return sigma
        raise ValueError(f"none of {_MAX_DRAWS:,} noise levels lies in drawn, {self.drawn}; widen it, or change shift")

    def scale(self, sigma: float) -> float:
        """1 - sigma."""
        return 1 - sigma

    def add_noise(self, clean: Tensor, noise: Tensor, sigma_B: Tensor) -> Tensor:
        """(1 - sigma) clean + sigma noise."""
        return torch.lerp(clean, noise, _like(sigma_B, clean))

    def inputs(self, noisy: Tensor, sigma_B: Tensor) -> tuple[Tensor, Tensor]:
        """The noisy latents as they are, and sigma."""
        return noisy, sigma_B if self.timesteps is None else (self.timesteps * sigma_B).floor() / self.timesteps

    def denoise(self, output: Tensor, noisy: Tensor, sigma_B: Tensor) -> Tensor:
        """noisy - sigma velocity, or the predicted sample itself."""
        _require_channels(output, noisy)
        return output if self.prediction == "sample" else noisy - _like(sigma_B, noisy) * output

    def losses(
        self, output: Tensor, clean: Tensor, noise: Tensor, sigma_B: Tensor, made: Tensor | None = None
    ) -> Tensor:
        """(1 + w sigma) mean |velocity - (noise - clean)|^2.

        For a predicted sample the error of the velocity is (clean - sample) / sigma exactly, so it is computed as
        that: the difference of two large velocities near sigma = 0 would lose the digits that matter.
        """
        _require_channels(output, clean)
        if self.prediction == "sample":
            error = (clean - output) / _like(sigma_B, clean).clamp(min=self.min_sigma)
        else:
            error = output - (noise - clean)
        return (1 + self.noise_weight * sigma_B) * _mean_square(error, made)

    def schedule(self, steps: int, size_THW: Sequence[int]) -> Tensor:
        """Equal steps from 1 to 0, shifted."""
        equal = torch.linspace(1, 0, _steps(steps) + 1, dtype=torch.float64)
        return shift_sigma(equal, self.shift, size_THW)

    def fraction(self, sigma_B: Tensor) -> Tensor:
        """sigma itself."""
        return sigma_B


class EDM:
    """The preconditioning, weighting and noise of Karras et al. 2022 (arXiv 2206.00364), table 1.

    Args:
        sigma_data: standard deviation of the clean latents.
        p_mean: mean of ln sigma in training.
        p_std: standard deviation of ln sigma in training.
        sigma_min: smallest noise level of the schedule above 0.
        sigma_max: largest noise level of the schedule.
        rho: curvature of the schedule; larger spends more steps near sigma_min.
    """

    def __init__(
        self, *, sigma_data: float = 0.5, p_mean: float = 0.0, p_std: float = 1.0, sigma_min: float = 0.002,
        sigma_max: float = 80.0, rho: float = 7.0,
    ) -> None:  # fmt: skip
        if min(sigma_data, p_std, rho) <= 0:
            raise ValueError(f"sigma_data ({sigma_data}), p_std ({p_std}) and rho ({rho}) must be above 0")
        if not 0 < sigma_min < sigma_max:
            raise ValueError(f"sigma_min ({sigma_min}) must lie above 0 and below sigma_max ({sigma_max})")
        self.sigma_data, self.p_mean, self.p_std = sigma_data, p_mean, p_std
        self.sigma_min, self.sigma_max, self.rho = sigma_min, sigma_max, rho

    def draw(self, generator: torch.Generator, size_THW: Sequence[int]) -> Tensor:
        """exp of a normal number, whatever the size."""
        return torch.exp(torch.randn((), generator=generator) * self.p_std + self.p_mean)

    def scale(self, sigma: float) -> float:
        """1 everywhere."""
        return 1.0

    def add_noise(self, clean: Tensor, noise: Tensor, sigma_B: Tensor) -> Tensor:
        """clean + sigma noise."""
        return clean + _like(sigma_B, clean) * noise

    def inputs(self, noisy: Tensor, sigma_B: Tensor) -> tuple[Tensor, Tensor]:
        """c_in noisy = noisy / sqrt(sigma^2 + sigma_data^2), and c_noise = ln(sigma) / 4."""
        sigma = _like(sigma_B, noisy)
        return noisy / (sigma**2 + self.sigma_data**2).sqrt(), sigma_B.log() / 4

    def denoise(self, output: Tensor, noisy: Tensor, sigma_B: Tensor) -> Tensor:
        """c_skip noisy + c_out output."""
        _require_channels(output, noisy)
        sigma = _like(sigma_B, noisy)
        total = sigma**2 + self.sigma_data**2
        return (self.sigma_data**2 / total) * noisy + (sigma * self.sigma_data / total.sqrt()) * output

    def losses(
        self, output: Tensor, clean: Tensor, noise: Tensor, sigma_B: Tensor, made: Tensor | None = None
    ) -> Tensor:
        """lambda(sigma) mean |D - clean|^2 with lambda = (sigma^2 + sigma_data^2) / (sigma sigma_data)^2."""
        estimate = self.denoise(output, self.add_noise(clean, noise, sigma_B), sigma_B)
        weight_B = (sigma_B**2 + self.sigma_data**2) / (sigma_B * self.sigma_data) ** 2
        return weight_B * _mean_square(estimate - clean, made)

    def schedule(self, steps: int, size_THW: Sequence[int]) -> Tensor:
        """Equation 5 for any size: `steps` levels from sigma_max to sigma_min, equal steps in sigma^(1/rho), then 0."""
        ramp = torch.linspace(0, 1, _steps(steps), dtype=torch.float64)
        low, high = self.sigma_min ** (1 / self.rho), self.sigma_max ** (1 / self.rho)
        return torch.cat([(high + ramp * (low - high)) ** self.rho, ramp.new_zeros(1)])

    def fraction(self, sigma_B: Tensor) -> Tensor:
        """sigma / (sigma + sigma_data)."""
        return sigma_B / (sigma_B + self.sigma_data)


def _like(sigma_B: Tensor, latents: Tensor) -> Tensor:
    """(B,) as (B, 1, 1, 1, 1), in the latents' dtype."""
    return sigma_B.to(latents.dtype).reshape(-1, *[1] * (latents.ndim - 1))


def _mean_square(error: Tensor, made: Tensor | None) -> Tensor:
    """The mean of each sample over its generated latents."""
    if made is None:
        return error.square().flatten(1).mean(1)
    return (made * error.square()).flatten(1).sum(1) / (made.flatten(1).sum(1) * error.shape[1])


def _require_channels(output: Tensor, latents: Tensor) -> None:
    if output.shape[1] != latents.shape[1]:
        raise ValueError(
            f"the model returned {output.shape[1]} channels for latents with {latents.shape[1]}; a model with "
            "uncertainty (one channel more) needs the objective UncertaintyWeighted"
        )


def _steps(steps: int) -> int:
    if steps < 1:
        raise ValueError(f"sampling needs at least 1 step, got {steps}")
    return steps


def shift_sigma(sigma: Tensor, shift: float | Shift, size_THW: Sequence[int]) -> Tensor:
    """s sigma / (1 + (s - 1) sigma), with s the shift as a number, or computed by the rule for this size."""
    factor = shift.factor(size_THW) if isinstance(shift, Shift) else shift
    return factor * sigma / (1 + (factor - 1) * sigma)
