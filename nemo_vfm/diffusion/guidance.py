# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Combines two estimates of the clean latents, with and without the text, to follow the text more closely."""

import math

import torch
from torch import Tensor


class ClassifierFree:
    """uncond + scale (cond - uncond), the usual convention (Ho and Salimans 2022, equation 6 with scale = 1 + w).

    Where other code writes cond + g (cond - uncond), as NeMo's samplers do, scale is g + 1.

    Args:
        scale: 1 is the conditional model unchanged and costs half, 0 ignores the text, above 1 exaggerates it.
        rescale: 0 leaves the guided estimate as it is; 1 gives each sample the standard deviation of its conditional
            estimate, which strong guidance inflates into glaring colours (Lin et al. 2023, equations 15 and 16, here on
            the estimate of the clean latents); between them it is a mixture.
        above_sigma: guidance acts only at noise levels above this one.
        below_sigma: and only at this one and below; None sets no limit. High noise levels are where guidance costs
            variety, low ones where it does nothing (Kynkaanniemi et al. 2024); outside it a step costs half. Sigma is
            the objective's: up to 1 for flow matching, up to sigma_max for EDM.
        low_scale: scale at noise levels below `low_below_sigma`, as of Wan 2.2 A14B, whose network for low levels is
            guided less; None has one scale.
        low_below_sigma: where that begins; to be given beside `low_scale`.

    Raises:
        ValueError: numbers outside their range.
    """

    def __init__(
        self, *, scale: float = 3.0, rescale: float = 0.0, above_sigma: float = 0.0, below_sigma: float | None = None,
        low_scale: float | None = None, low_below_sigma: float | None = None,
    ) -> None:  # fmt: skip
        for name, number in (("scale", scale), ("low_scale", low_scale)):
            if number is not None and number < 0:
                raise ValueError(f"{name} must not be negative, got {number}")
        if (low_scale is None) != (low_below_sigma is None) or (low_below_sigma or 0) < 0:
            raise ValueError(f"low_scale ({low_scale}) and low_below_sigma ({low_below_sigma}) go together; give both, "
                             f"the latter not negative, or neither")  # fmt: skip
        if not 0 <= rescale <= 1:
            raise ValueError(f"rescale must lie in 0..1, got {rescale}")
        if not 0 <= above_sigma < (math.inf if below_sigma is None else below_sigma):
            raise ValueError(f"above_sigma ({above_sigma}) must lie from 0 to below below_sigma ({below_sigma})")
        self.scale, self.rescale = scale, rescale
        self.above_sigma, self.below_sigma = above_sigma, math.inf if below_sigma is None else below_sigma
        self.low_scale, self.low_below_sigma = low_scale, low_below_sigma

    def acts(self) -> bool:
        """False where the conditional estimate alone is the answer at every noise level."""
        return self.scale != 1.0 or self.low_scale not in (None, 1.0)

    def acts_at(self, sigma: float) -> bool:
        """False where the conditional estimate alone is the answer at this noise level."""
        return self.scale_at(sigma) != 1.0 and self.above_sigma < sigma <= self.below_sigma

    def scale_at(self, sigma: float) -> float:
        """The scale at a noise level."""
        if self.low_scale is None or self.low_below_sigma is None or sigma >= self.low_below_sigma:
            return self.scale
        return self.low_scale

    def combine(self, cond: Tensor, uncond: Tensor, sigma: float) -> Tensor:
        """The guided estimate at a noise level."""
        guided = uncond + self.scale_at(sigma) * (cond - uncond)
        if self.rescale == 0:
            return guided
        return torch.lerp(guided, guided * (_std(cond) / _std(guided).clamp(min=1e-12)), self.rescale)


def _std(latents: Tensor) -> Tensor:
    """Of each sample, shaped to divide it."""
    return latents.flatten(1).std(1).reshape(-1, *[1] * (latents.ndim - 1))
