"""Weights an objective's losses by the model's own uncertainty, so that all noise levels weigh alike.

The loss of a noise level is L e^-u + u, where u, the mean of the model's last channel, is learned. It is minimal at
u = ln L, where every level has the same weight, however large its L (Karras et al. 2024, EDM2, section 5.2 and equation
22; Kendall and Gal 2018).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_vfm.core import log
from nemo_vfm.diffusion.objective import Objective


class UncertaintyWeighted:
    """Weights another objective's loss by the model's own uncertainty.

    Only the losses of training and validation change; noise levels and sampling stay those of the other objective. The
    model is built with `uncertainty: true`.

    Args:
        objective: its loss is L; best one that is about 1 at every noise level at first, such as EDM's.
    """

    def __init__(self, *, objective: Objective) -> None:
        self.objective = objective

    def draw(self, generator: torch.Generator, size_THW: Sequence[int]) -> Tensor:
        return self.objective.draw(generator, size_THW)

    def scale(self, sigma: float) -> float:
        return self.objective.scale(sigma)

    def add_noise(self, clean: Tensor, noise: Tensor, sigma_B: Tensor) -> Tensor:
        return self.objective.add_noise(clean, noise, sigma_B)

    def inputs(self, noisy: Tensor, sigma_B: Tensor) -> tuple[Tensor, Tensor]:
        return self.objective.inputs(noisy, sigma_B)

    def denoise(self, output: Tensor, noisy: Tensor, sigma_B: Tensor) -> Tensor:
        """As the objective does, without the last channel."""
        return self.objective.denoise(_split_channels(output, noisy)[0], noisy, sigma_B)

    def losses(
        self, output: Tensor, clean: Tensor, noise: Tensor, sigma_B: Tensor, made: Tensor | None = None
    ) -> Tensor:
        """(B,) L e^-u + u. It is negative where L < 1 / e and u has learned that; a warning says so once."""
        latents, u_B = _split_channels(output, clean)
        losses_B = self.objective.losses(latents, clean, noise, sigma_B, made) * torch.exp(-u_B) + u_B
        if bool((losses_B.detach() < 0).any()):
            log.warn_once(
                "The loss of a sample fell below zero, as it can under uncertainty weighting: it is L exp(-u) + u, "
                "which approaches 1 + ln L as u is learned. exp(loss - 1) is about the plain loss L."
            )
        return losses_B

    def schedule(self, steps: int, size_THW: Sequence[int]) -> Tensor:
        return self.objective.schedule(steps, size_THW)

    def fraction(self, sigma_B: Tensor) -> Tensor:
        return self.objective.fraction(sigma_B)


def _split_channels(output: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
    """(the output in the shape of the latents, u of each sample)."""
    if output.shape[1] != latents.shape[1] + 1:
        raise ValueError(
            f"the model returned {output.shape[1]} channels for latents with {latents.shape[1]}; weighting by "
            f"uncertainty needs {latents.shape[1] + 1}, the last of which is u: build the model with uncertainty: true"
        )
    return output[:, :-1], output[:, -1].flatten(1).mean(1)
