# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Generates videos as pixels from prompts with a trained network.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.encoders import Codec, TextEncoder
from nemo_vfm.diffusion.conditioning.frame_conditioning import FrameConditioning, GivenFrames, batch_of
from nemo_vfm.diffusion.device_memory import DeviceMemory
from nemo_vfm.diffusion.generated_videos import CacheError, GeneratedVideos, VideoRequest, cache_error
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.guided_denoiser import GuidedDenoiser, Texts, ToldFrames
from nemo_vfm.diffusion.noise_schedule import NoiseSchedule
from nemo_vfm.diffusion.objective import Objective
from nemo_vfm.diffusion.sampler import Sampler
from nemo_vfm.diffusion.step_cache import CachedSteps, FirstBlockCache
from nemo_vfm.parallel.engine.sampling_ranks import SamplingRanks


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
        step_cache: leaves out blocks that would change little, at an error that docs/sampling.md tells; None leaves out
            none.
        offload: keep text encoder, network and codec in host memory while another of them computes.

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
        step_cache: FirstBlockCache | None = None,
        offload: bool = False,
    ) -> None:
        if negative_prompt and not guidance.acts():
            raise ValueError(
                f"negative_prompt {negative_prompt!r} has no effect at guidance scale 1; raise that, or leave it out"
            )
        self.codec, self.text_encoder, self.objective = codec, text_encoder, objective
        self.sampler, self.guidance, self.negative_prompt = sampler, guidance, negative_prompt
        self.noise_schedule, self.frame_conditioning = noise_schedule, frame_conditioning
        self.step_cache, self.offload = step_cache, offload

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
        """Draw one video a prompt; see `VideoRequest` for the arguments, and `make` for the rest.

        Returns:
            (B, T, H, W, 3), uint8, on the CPU.

        Raises:
            ValueError: a frame rate that cannot be, or given frames that the network cannot take.
        """
        request = VideoRequest(prompts=prompts, num_frames=num_frames, height=height, width=width, fps=fps, seed=seed,
                               repeats=repeats, given=given)  # fmt: skip
        made = self.make(model, request)
        assert made is not None, "a process that draws alone decodes"
        return made.pixels_BTHWC

    @torch.no_grad()
    def make(
        self, model: nn.Module, request: VideoRequest, ranks: SamplingRanks | None = None,
        device: torch.device | None = None,
    ) -> GeneratedVideos | None:  # fmt: skip
        """Draw one video a prompt.

        Args:
            model: the network, in evaluation mode; with `offload` it may wait in host memory.
            request: what to draw.
            ranks: who draws it together, all of which must call this; None is this process alone.
            device: where to compute; None is where the model is.

        Returns:
            The videos; None on a rank that decodes none.

        Raises:
            ValueError: given frames that the network cannot take.
        """
        ranks, names = ranks or SamplingRanks(), request.names()
        memory = DeviceMemory(model, device or next(model.parameters()).device, ranks, offloads=self.offload)
        shape = self.codec.latent_shape(*request.size)
        noise = _noise(shape, request.seed, names).to(memory.device)
        known = self.given(request.given, names, request.size, seed=request.seed)
        texts = self._encoded(request.prompts, memory.device)
        memory.release(self.text_encoder, self.codec, self.frame_conditioning)
        memory.take_model()
        drawing = _Drawing(self, model, texts, noise, request.fps, None if known is None else known.to(noise.device),
                           ranks)  # fmt: skip
        found = drawing.run()
        memory.release_model()
        if not ranks.writes:
            return None
        made = drawing.decoded(found)
        memory.release(self.codec)
        return made

    @torch.no_grad()
    def latents(
        self, model: nn.Module, prompts: Sequence[str], noise: Tensor, *, fps: float, given: GivenFrames | None = None,
        ranks: SamplingRanks | None = None,
    ) -> Tensor:  # fmt: skip
        """Draw the latents of one video a prompt from noise, (B, C, T, H, W), fp32."""
        texts = self._encoded(prompts, noise.device)
        return _Drawing(self, model, texts, noise, fps, given, ranks or SamplingRanks()).run().latents

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

    def _encoded(self, prompts: Sequence[str], device: torch.device) -> Texts:
        # One call: an encoder that pads to the longest text must not cut the negative one to the others' length.
        texts = [*prompts, self.negative_prompt] if self.guidance.acts() else list(prompts)
        found = Texts(*self.text_encoder.encode(texts)).to(device)
        if not self.guidance.acts():
            return found
        rows = torch.arange(2 * len(prompts)).clamp(max=len(prompts))  # the negative prompt once for each other
        return Texts(found.text_BLD[rows], found.mask_BL[rows])


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Latents, fp32, and of a step cache how many blocks it left out, and the latents without it."""

    latents: Tensor
    cache: CachedSteps | None = None
    exact: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Drawing:
    """One batch of videos, ready to be drawn; see `TextToVideo.make`."""

    pipeline: TextToVideo
    model: nn.Module
    texts: Texts
    noise: Tensor
    fps: float
    given: GivenFrames | None
    ranks: SamplingRanks

    def run(self) -> _Drawn:
        """Draw the latents; once more where the step cache measures its error."""
        if (step_cache := self.pipeline.step_cache) is None:
            return _Drawn(self._latents(None))
        cache = step_cache.begin(self.model)
        latents = self._latents(cache)
        return _Drawn(latents, cache, self._latents(None) if step_cache.measure else None)

    def decoded(self, drawn: _Drawn) -> GeneratedVideos:
        """The pixels, and what the step cache did."""
        pixels = _pixels(self.pipeline.codec.decode(drawn.latents))
        if drawn.cache is None:
            return GeneratedVideos(pixels)
        errors: list[CacheError] = []
        if drawn.exact is not None:
            whole = _pixels(self.pipeline.codec.decode(drawn.exact))
            errors = [cache_error(*row) for row in zip(drawn.latents, drawn.exact, pixels, whole, strict=True)]
        return GeneratedVideos(pixels, drawn.cache.num_blocks, drawn.cache.num_skipped, errors)

    def _latents(self, cache: CachedSteps | None) -> Tensor:
        noise, sigmas = self._start()
        denoiser = self._denoiser(cache)
        drawn = self.pipeline.sampler.draw(denoiser, noise, sigmas)
        # A schedule that ends above 0 leaves the state where the clean latents are faded by that much.
        latents = drawn.latents.float() / self.pipeline.objective.scale(float(sigmas[-1]))
        # Only here: the network never sees the state where frames are given.
        return latents if denoiser.told is None else denoiser.told.put_into(latents)

    def _start(self) -> tuple[Tensor, Tensor]:
        """The first noise and the noise levels."""
        steps, size = self.pipeline.sampler.num_steps(), tuple(self.noise.shape[2:])
        schedule = self.pipeline.noise_schedule
        if schedule is None:
            return self.noise, self.pipeline.objective.schedule(steps, size)
        sigmas = schedule.sigmas(steps, size)
        return self.noise.double() * (schedule.first_noise(sigmas) / float(sigmas[0])), sigmas

    def _denoiser(self, cache: CachedSteps | None) -> GuidedDenoiser:
        conditioning = self.pipeline.frame_conditioning
        told = None if conditioning is None or self.given is None else ToldFrames(conditioning, self.given)
        return GuidedDenoiser(self.model, self.pipeline.objective, self.pipeline.guidance, self.texts, self.fps, told,
                              self.ranks, cache)  # fmt: skip


def _noise(shape: Sequence[int], seed: int, names: Sequence[tuple[str | int, ...]]) -> Tensor:
    """(B, *shape), each a function of the seed and its name."""
    return torch.stack([torch.randn(tuple(shape), generator=generator(seed, *name)) for name in names])


def _pixels(video_BCTHW: Tensor) -> Tensor:
    """[-1, 1] to bytes, channels last."""
    return ((video_BCTHW.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).contiguous().cpu()
