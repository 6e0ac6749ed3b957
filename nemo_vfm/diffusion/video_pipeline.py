# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Generates videos as pixels from prompts with a trained network.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nemo_vfm.core.frame_rate import frame_rate
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.encoders import Codec, TextEncoder
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.objective import Objective
from nemo_vfm.diffusion.sampler import Sampler


class TextToVideo:
    """Noise to video under a text.

    Args:
        codec: the codec the network was trained with.
        text_encoder: the text encoder it was trained with.
        objective: the objective it was trained with.
        sampler: the solver, with its number of steps.
        guidance: how strongly the text is followed.
        negative_prompt: what guidance leads away from; the empty text leads away from videos of nothing in particular.

    Raises:
        ValueError: a negative prompt that guidance would never look at.
    """

    def __init__(
        self,
        *,
        codec: Codec,
        text_encoder: TextEncoder,
        objective: Objective,
        sampler: Sampler,
        guidance: ClassifierFree,
        negative_prompt: str = "",
    ) -> None:
        if negative_prompt and not guidance.acts():
            raise ValueError(
                f"negative_prompt {negative_prompt!r} has no effect at guidance scale 1; raise that, or leave it out"
            )
        self.codec, self.text_encoder, self.objective = codec, text_encoder, objective
        self.sampler, self.guidance, self.negative_prompt = sampler, guidance, negative_prompt

    @torch.no_grad()
    def generate(
        self,
        model: nn.Module,
        prompts: Sequence[str],
        *,
        num_frames: int,
        height: int,
        width: int,
        fps: float,
        seed: int,
        repeats: Sequence[int] | None = None,
    ) -> Tensor:
        """Draw one video a prompt.

        Args:
            model: the network, on its device and in evaluation mode.
            prompts: texts; the noise of one is a function of (seed, text, repeat), not of its companions.
            num_frames: frames of a video; the codec says which numbers fit.
            height: pixels.
            width: pixels.
            fps: frames a second.
            seed: root of the noise.
            repeats: which draw of its text each prompt is; None counts equal texts from 0.

        Returns:
            (B, T, H, W, 3), uint8, on the CPU.

        Raises:
            ValueError: a frame rate that cannot be.
        """
        frame_rate(fps)
        shape = self.codec.latent_shape(num_frames, height, width)
        which = list(repeats) if repeats is not None else _counted(prompts)
        noise = torch.stack(
            [
                torch.randn(shape, generator=generator(seed, "sampling", text, number))
                for text, number in zip(prompts, which, strict=True)
            ]
        ).to(next(model.parameters()).device)
        sigmas = self.objective.schedule(self.sampler.num_steps(), shape[1:])
        drawn = self.sampler.draw(self._denoiser(model, prompts, fps, noise), noise, sigmas)
        return _pixels(self.codec.decode(drawn.latents.float()))

    def _denoiser(self, model: nn.Module, prompts: Sequence[str], fps: float, noise: Tensor) -> "_Guided":
        # One call: an encoder that pads to the longest text must not cut the negative one to the others' length.
        texts = [*prompts, self.negative_prompt] if self.guidance.acts() else list(prompts)
        text_BLD, mask_BL = (tensor.to(noise.device) for tensor in self.text_encoder.encode(texts))
        if self.guidance.acts():
            rows = torch.arange(2 * len(prompts)).clamp(max=len(prompts))  # the negative prompt once for each other
            text_BLD, mask_BL = text_BLD[rows], mask_BL[rows]
        fps_B = torch.full((len(text_BLD),), fps, device=noise.device)
        return _Guided(model, self.objective, self.guidance, text_BLD, mask_BL, fps_B)


@dataclass(frozen=True, slots=True)
class _Guided:
    """D(x; sigma) under guidance: with and without the text in one batched call, where guidance acts."""

    model: nn.Module
    objective: Objective
    guidance: ClassifierFree
    text_BLD: Tensor
    mask_BL: Tensor
    fps_B: Tensor

    def scale(self, sigma: float) -> float:
        return self.objective.scale(sigma)

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        if not self.guidance.acts_at(sigma):
            return self._estimates(x, sigma)
        cond, uncond = self._estimates(x.repeat(2, 1, 1, 1, 1), sigma).chunk(2)
        return self.guidance.combine(cond, uncond)

    def _estimates(self, x: Tensor, sigma: float) -> Tensor:
        """The prompts come first: as many texts as there are samples in x."""
        noisy, count = x.float(), len(x)
        sigma_B = noisy.new_full((count,), sigma)
        latents, noise_B = self.objective.inputs(noisy, sigma_B)
        output = self.model(
            latents_BCTHW=latents,
            noise_B=noise_B,
            text_BLD=self.text_BLD[:count],
            text_mask_BL=self.mask_BL[:count],
            fps_B=self.fps_B[:count],
        )
        return self.objective.denoised(output.double(), x, sigma_B.double())


def _counted(prompts: Sequence[str]) -> list[int]:
    """How many equal texts stand before each."""
    seen: Counter[str] = Counter()
    numbers = []
    for text in prompts:
        numbers.append(seen[text])
        seen[text] += 1
    return numbers


def _pixels(video_BCTHW: Tensor) -> Tensor:
    """[-1, 1] to bytes, channels last."""
    return ((video_BCTHW.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).contiguous().cpu()
