# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Generates videos as pixels from prompts with a trained network.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nemo_vfm.core.frame_rate import frame_rate
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.encoders import Codec, TextEncoder
from nemo_vfm.diffusion.conditioning.frame_conditioning import FrameConditioning, GivenFrames, batch_of
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.noise_schedule import NoiseSchedule
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
        noise_schedule: noise levels of the steps; None takes those of the objective.
        frame_conditioning: how the network is told of frames that it is given; None where it knows of none.

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
        noise_schedule: NoiseSchedule | None = None,
        frame_conditioning: FrameConditioning | None = None,
    ) -> None:
        if negative_prompt and not guidance.acts():
            raise ValueError(
                f"negative_prompt {negative_prompt!r} has no effect at guidance scale 1; raise that, or leave it out"
            )
        self.codec, self.text_encoder, self.objective = codec, text_encoder, objective
        self.sampler, self.guidance, self.negative_prompt = sampler, guidance, negative_prompt
        self.noise_schedule, self.frame_conditioning = noise_schedule, frame_conditioning

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
        given: Sequence[Tensor | None] | None = None,
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
            given: the first frames of each video, (T, H, W, 3), uint8; None where nothing is given.

        Returns:
            (B, T, H, W, 3), uint8, on the CPU.

        Raises:
            ValueError: a frame rate that cannot be, or given frames that the network cannot take.
        """
        frame_rate(fps)
        shape = self.codec.latent_shape(num_frames, height, width)
        which = list(repeats) if repeats is not None else _counted(prompts)
        names = [("sampling", text, number) for text, number in zip(prompts, which, strict=True)]
        noise = _noise(shape, seed, names).to(next(model.parameters()).device)
        known = self.given(given, names, (num_frames, height, width), seed=seed)
        latents = self.latents(model, prompts, noise, fps=fps, given=None if known is None else known.to(noise.device))
        return _pixels(self.codec.decode(latents))

    @torch.no_grad()
    def latents(
        self, model: nn.Module, prompts: Sequence[str], noise: Tensor, *, fps: float, given: GivenFrames | None = None
    ) -> Tensor:
        """Draw the latents of one video a prompt from noise, (B, C, T, H, W), fp32."""
        steps, size = self.sampler.num_steps(), tuple(noise.shape[2:])
        if self.noise_schedule is None:
            sigmas = self.objective.schedule(steps, size)
        else:
            sigmas = self.noise_schedule.sigmas(steps, size)
            noise = noise.double() * (self.noise_schedule.first_noise(sigmas) / float(sigmas[0]))
        denoiser = self._denoiser(model, prompts, fps, noise, given)
        drawn = self.sampler.draw(denoiser, noise, sigmas)
        # A schedule that ends above 0 leaves the state where the clean latents are faded by that much.
        latents = drawn.latents.float() / self.objective.scale(float(sigmas[-1]))
        # Only here: the network never sees the state where frames are given.
        return latents if denoiser.told is None else denoiser.told.put_into(latents)

    def given(
        self, clips: Sequence[Tensor | None] | None, names: Sequence[tuple[str | int, ...]],
        size: tuple[int, int, int], *, seed: int,
    ) -> GivenFrames | None:  # fmt: skip
        """What the network is told of given frames; None where it cannot be told.

        Args:
            clips: see `given` of `generate`.
            names: of each video: the noise on what is given is a function of the seed and these.
            size: frames, height and width of a video, in pixels.
            seed: root of that noise.

        Raises:
            ValueError: see `generate`.
        """
        clips = list(clips) if clips is not None else [None] * len(names)
        if len(clips) != len(names):
            raise ValueError(f"{len(clips)} entries of given for {len(names)} prompts; give one each, or None")
        if self.frame_conditioning is None:
            if any(clip is not None for clip in clips):
                raise ValueError("frames are given to a pipeline without frame_conditioning; set it to how the network "
                                 "is told of them")  # fmt: skip
            return None
        each = [self._given_one(clip, size, self.frame_conditioning) for clip in clips]
        noise = _noise(tuple(each[0].latents_BCTHW.shape[1:]), seed, [("given", *name) for name in names])
        return replace(batch_of(each), noise_BCTHW=noise)

    def _given_one(
        self, clip: Tensor | None, size: tuple[int, int, int], conditioning: FrameConditioning
    ) -> GivenFrames:
        frames, height, width = size
        if clip is None:
            clip = torch.zeros(0, height, width, 3, dtype=torch.uint8)
        if clip.shape[1:] != (height, width, 3) or len(clip) >= frames:
            raise ValueError(f"given frames have the shape {tuple(clip.shape)}; expected fewer than {frames}, of "
                             f"{(height, width, 3)}")  # fmt: skip
        return conditioning.from_pixels(clip.permute(3, 0, 1, 2).float() / 127.5 - 1, frames, self.codec)

    def _denoiser(
        self, model: nn.Module, prompts: Sequence[str], fps: float, noise: Tensor, given: GivenFrames | None
    ) -> "_Guided":
        # One call: an encoder that pads to the longest text must not cut the negative one to the others' length.
        texts = [*prompts, self.negative_prompt] if self.guidance.acts() else list(prompts)
        text_BLD, mask_BL = (tensor.to(noise.device) for tensor in self.text_encoder.encode(texts))
        if self.guidance.acts():
            rows = torch.arange(2 * len(prompts)).clamp(max=len(prompts))  # the negative prompt once for each other
            text_BLD, mask_BL = text_BLD[rows], mask_BL[rows]
        fps_B = torch.full((len(text_BLD),), fps, device=noise.device)
        told = None if self.frame_conditioning is None or given is None else _Told(self.frame_conditioning, given)
        return _Guided(model, self.objective, self.guidance, text_BLD, mask_BL, fps_B, told)


@dataclass(frozen=True, slots=True)
class _Told:
    """Given frames, and how the network is told of them."""

    conditioning: FrameConditioning
    given: GivenFrames

    def inputs(self, objective: Objective, noisy: Tensor, sigma_B: Tensor) -> dict[str, Tensor]:
        given = batch_of([self.given] * (len(noisy) // len(self.given.mask_BT)))  # once more under guidance
        return self.conditioning.inputs(objective, noisy, sigma_B, given)

    def put_into(self, clean: Tensor) -> Tensor:
        """What is known in place of what was drawn."""
        known = self.conditioning.known(self.given)
        return clean if known is None else torch.where(known, self.given.latents_BCTHW.to(clean), clean)


@dataclass(frozen=True, slots=True)
class _Guided:
    """D(x; sigma) under guidance: with and without the text in one batched call, where guidance acts."""

    model: nn.Module
    objective: Objective
    guidance: ClassifierFree
    text_BLD: Tensor
    mask_BL: Tensor
    fps_B: Tensor
    told: _Told | None

    def scale(self, sigma: float) -> float:
        return self.objective.scale(sigma)

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        if not self.guidance.acts_at(sigma):
            return self._estimates(x, sigma)
        cond, uncond = self._estimates(x.repeat(2, 1, 1, 1, 1), sigma).chunk(2)
        return self.guidance.combine(cond, uncond, sigma)

    def _estimates(self, x: Tensor, sigma: float) -> Tensor:
        """The prompts come first: as many texts as there are samples in x."""
        noisy, count = x.float(), len(x)
        sigma_B = x.new_full((count,), sigma)
        if self.told is None:
            latents, noise_B = self.objective.inputs(noisy, sigma_B)
            inputs = {"latents_BCTHW": latents, "noise_B": noise_B}
        else:
            inputs = self.told.inputs(self.objective, noisy, sigma_B)
        output = self.model(
            **inputs | {"noise_B": inputs["noise_B"].float()}, text_BLD=self.text_BLD[:count],
            text_mask_BL=self.mask_BL[:count], fps_B=self.fps_B[:count],
        )  # fmt: skip
        return self.objective.denoised(output.double(), x, sigma_B)


def _noise(shape: Sequence[int], seed: int, names: Sequence[tuple[str | int, ...]]) -> Tensor:
    """(B, *shape), each a function of the seed and its name."""
    return torch.stack([torch.randn(tuple(shape), generator=generator(seed, *name)) for name in names])


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
