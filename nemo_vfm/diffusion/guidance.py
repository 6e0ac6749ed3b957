"""Applies classifier-free guidance to the conditional and the unconditional estimate of the clean latents."""

import math

import torch
from torch import Tensor


class ClassifierFree:
    """uncond + scale (cond - uncond), the usual convention (Ho and Salimans 2022, equation 6 with scale = 1 + w).

    In the convention cond + g (cond - uncond), which NeMo's samplers use, scale is g + 1.

    Args:
        scale: 1 is the conditional model at half the cost, 0 ignores the text, above 1 amplifies its effect.
        rescale: 0 leaves the guided estimate unchanged. 1 rescales each sample to the standard deviation of its
            conditional estimate, because strong guidance oversaturates colours (Lin et al. 2023, equations 15 and 16,
            here applied to the clean latents). Values between interpolate.
        above_sigma: guidance is applied only at noise levels above this one.
        below_sigma: guidance is applied only up to this noise level; None sets no limit. At high levels guidance
            reduces variety, at low ones it has no effect (Kynkaanniemi et al. 2024). Steps outside cost half. Sigma is
            the objective's: up to 1 for flow matching, up to sigma_max for EDM.
        low_scale: scale at noise levels below `low_below_sigma`, for models such as Wan 2.2 A14B, whose low-noise
            network needs less guidance; None uses `scale` everywhere.
        low_below_sigma: noise level below which `low_scale` applies; required with `low_scale`.
    """

    def __init__(
        self, *, scale: float = 3.0, rescale: float = 0.0, above_sigma: float = 0.0, below_sigma: float | None = None,
        low_scale: float | None = None, low_below_sigma: float | None = None,
    ) -> None:  # fmt: skip
        for name, number in (("scale", scale), ("low_scale", low_scale)):
            if number is not None and number < 0:
                raise ValueError(f"{name} must not be negative, got {number}")
        if (low_scale is None) != (low_below_sigma is None) or (low_below_sigma or 0) < 0:
            raise ValueError(f"low_scale ({low_scale}) and low_below_sigma ({low_below_sigma}) must be set together, "
                             f"and the latter must not be negative; set both or neither")  # fmt: skip
        if not 0 <= rescale <= 1:
            raise ValueError(f"rescale must be between 0 and 1, got {rescale}")
        if not 0 <= above_sigma < (math.inf if below_sigma is None else below_sigma):
            raise ValueError(f"above_sigma ({above_sigma}) must be at least 0 and below below_sigma ({below_sigma})")
        self.scale, self.rescale = scale, rescale
        self.above_sigma, self.below_sigma = above_sigma, math.inf if below_sigma is None else below_sigma
        self.low_scale, self.low_below_sigma = low_scale, low_below_sigma

    def acts(self) -> bool:
        """Return whether any noise level needs the unconditional estimate."""
        return self.scale != 1.0 or self.low_scale not in (None, 1.0)

    def acts_at(self, sigma: float) -> bool:
        """Return whether this noise level needs the unconditional estimate."""
        return self.scale_at(sigma) != 1.0 and self.above_sigma < sigma <= self.below_sigma

    def scale_at(self, sigma: float) -> float:
        if self.low_scale is None or self.low_below_sigma is None or sigma >= self.low_below_sigma:
            return self.scale
        return self.low_scale

    def combine(self, cond: Tensor, uncond: Tensor, sigma: float) -> Tensor:
        guided = uncond + self.scale_at(sigma) * (cond - uncond)
        if self.rescale == 0:
            return guided
        shape = -1, *[1] * (cond.ndim - 1)
        wanted, found = (one.flatten(1).std(1).reshape(shape) for one in (cond, guided))
        return torch.lerp(guided, guided * (wanted / found.clamp(min=1e-12)), self.rescale)
