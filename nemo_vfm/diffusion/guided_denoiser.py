"""Estimates clean latents with classifier-free guidance, with both estimates on one rank or one on each of two.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nemo_vfm.diffusion.frame_conditioning import FrameConditioning, GivenFrames, batch_of
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.objective import Objective
from nemo_vfm.diffusion.step_cache import IDLE, CachedSteps
from nemo_vfm.parallel.engine.inference_model import SamplingRanks

BRANCHES = ("cond", "uncond")


@dataclass(frozen=True, slots=True)
class GuidedDenoiser:
    """The denoiser D(x; sigma) with classifier-free guidance."""

    model: nn.Module  #: the network
    objective: Objective  #: the objective it was trained with
    guidance: ClassifierFree  #: how the estimates are combined
    text_BLD: Tensor  #: the prompts, followed under guidance by as many copies of the negative prompt
    mask_BL: Tensor  #: True at their tokens
    fps: float  #: frames per second
    conditioning: FrameConditioning | None  #: how the network receives given frames; None if it does not
    given: GivenFrames | None  #: given frames; None if the network does not support them
    ranks: SamplingRanks  #: the ranks that sample together
    cache: CachedSteps | None  #: step cache that skips blocks; None skips none

    def scale(self, sigma: float) -> float:
        return self.objective.scale(sigma)

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        acts = self.guidance.acts_at(sigma)
        if self.ranks.branch is not None:
            # Exchanged once per step, even without guidance, so that both ranks have the same result.
            branch = BRANCHES[self.ranks.branch] if acts or self.ranks.branch == 0 else IDLE
            cond, uncond = self.ranks.estimates(self._estimates(x, sigma, (branch,)))
            return self.guidance.combine(cond, uncond, sigma) if acts else cond
        if not acts:
            return self._estimates(x, sigma, BRANCHES[:1])
        cond, uncond = self._estimates(x.repeat(2, 1, 1, 1, 1), sigma, BRANCHES).chunk(2)
        return self.guidance.combine(cond, uncond, sigma)

    def _estimates(self, x: Tensor, sigma: float, branches: Sequence[str]) -> Tensor:
        noisy, count = x.float(), len(x)
        sigma_B = x.new_full((count,), sigma)
        if self.conditioning is None or self.given is None:
            latents, noise_B = self.objective.inputs(noisy, sigma_B)
            inputs = {"latents_BCTHW": latents, "noise_B": noise_B}
        else:
            given = batch_of([self.given] * (count // len(self.given.mask_BT)))  # twice under guidance
            inputs = self.conditioning.inputs(self.objective, noisy, sigma_B, given)
        rows = slice(count, None) if branches == BRANCHES[1:] else slice(count)
        with nullcontext() if self.cache is None else self.cache.call(branches):
            output = self.model(
                **inputs | {"noise_B": inputs["noise_B"].float()}, text_BLD=self.text_BLD[rows],
                text_mask_BL=self.mask_BL[rows], fps_B=torch.full((count,), self.fps, device=x.device),
            )  # fmt: skip
        return self.objective.denoise(output.double(), x, sigma_B)
