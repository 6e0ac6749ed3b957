# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Estimates clean latents under guidance, with both estimates on one rank or one on each of two.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nemo_vfm.diffusion.conditioning.frame_conditioning import FrameConditioning, GivenFrames, batch_of
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.objective import Objective
from nemo_vfm.diffusion.step_cache import IDLE, CachedSteps
from nemo_vfm.parallel.engine.sampling_ranks import SamplingRanks

BRANCHES = ("cond", "uncond")


@dataclass(frozen=True, slots=True)
class ToldFrames:
    """Given frames, and how the network is told of them."""

    conditioning: FrameConditioning
    given: GivenFrames

    def inputs(self, objective: Objective, noisy: Tensor, sigma_B: Tensor) -> dict[str, Tensor]:
        """The network's inputs, of once or twice as many rows as there are videos."""
        given = batch_of([self.given] * (len(noisy) // len(self.given.mask_BT)))  # once more under guidance
        return self.conditioning.inputs(objective, noisy, sigma_B, given)

    def put_into(self, clean: Tensor) -> Tensor:
        """What is known in place of what was drawn."""
        known = self.conditioning.known(self.given)
        return clean if known is None else torch.where(known, self.given.latents_BCTHW.to(clean), clean)


@dataclass(frozen=True, slots=True)
class Texts:
    """Encoded texts of a batch: those of the prompts, then as often the negative one where guidance acts."""

    text_BLD: Tensor
    mask_BL: Tensor

    def to(self, device: torch.device) -> "Texts":
        """The same on a device."""
        return Texts(self.text_BLD.to(device), self.mask_BL.to(device))

    def rows(self, rows: slice) -> "Texts":
        """Some of them."""
        return Texts(self.text_BLD[rows], self.mask_BL[rows])


@dataclass(frozen=True, slots=True)
class GuidedDenoiser:
    """D(x; sigma) under guidance.

    Args:
        model: the network.
        objective: it was trained with.
        guidance: how estimates are combined.
        texts: of the batch.
        fps: frames a second.
        told: given frames; None where the network is told of none.
        ranks: who draws together.
        cache: leaves out blocks; None leaves out none.
    """

    model: nn.Module
    objective: Objective
    guidance: ClassifierFree
    texts: Texts
    fps: float
    told: ToldFrames | None
    ranks: SamplingRanks
    cache: CachedSteps | None

    def scale(self, sigma: float) -> float:
        """See `Denoiser`."""
        return self.objective.scale(sigma)

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        """See `Denoiser`."""
        acts = self.guidance.acts_at(sigma)
        if self.ranks.branch is not None:
            return self._on_two_ranks(x, sigma, self.ranks.branch, acts=acts)
        if not acts:
            return self._estimates(x, sigma, BRANCHES[:1])
        cond, uncond = self._estimates(x.repeat(2, 1, 1, 1, 1), sigma, BRANCHES).chunk(2)
        return self.guidance.combine(cond, uncond, sigma)

    def _on_two_ranks(self, x: Tensor, sigma: float, branch: int, *, acts: bool) -> Tensor:
        """One exchange a step. Where guidance does not act both ranks must still end with the same numbers."""
        own = self._estimates(x, sigma, (BRANCHES[branch] if acts or branch == 0 else IDLE,))
        cond, uncond = self.ranks.estimates(own)
        return self.guidance.combine(cond, uncond, sigma) if acts else cond

    def _estimates(self, x: Tensor, sigma: float, branches: Sequence[str]) -> Tensor:
        """Of as many rows as there are in x: those of each branch in turn."""
        noisy, count = x.float(), len(x)
        sigma_B = x.new_full((count,), sigma)
        if self.told is None:
            latents, noise_B = self.objective.inputs(noisy, sigma_B)
            inputs = {"latents_BCTHW": latents, "noise_B": noise_B}
        else:
            inputs = self.told.inputs(self.objective, noisy, sigma_B)
        texts = self.texts.rows(slice(count, None) if branches == BRANCHES[1:] else slice(count))
        with self._caching(branches):
            output = self.model(
                **inputs | {"noise_B": inputs["noise_B"].float()}, text_BLD=texts.text_BLD,
                text_mask_BL=texts.mask_BL, fps_B=torch.full((count,), self.fps, device=x.device),
            )  # fmt: skip
        return self.objective.denoised(output.double(), x, sigma_B)

    def _caching(self, branches: Sequence[str]) -> AbstractContextManager[None]:
        return nullcontext() if self.cache is None else self.cache.call(branches)
