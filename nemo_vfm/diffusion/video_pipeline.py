"""Generates videos from prompts with a trained network.

Text encoder, network and codec may take turns in device memory, so that all three need not fit at once.
Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, log10

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.encoders import Codec, Offloadable, TextEncoder
from nemo_vfm.diffusion.frame_conditioning import FrameConditioning, GivenFrames, batch_of
from nemo_vfm.diffusion.generated_videos import CacheError, GeneratedVideos, VideoRequest
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.guided_denoiser import GuidedDenoiser
from nemo_vfm.diffusion.noise_schedule import NoiseSchedule
from nemo_vfm.diffusion.objective import Objective
from nemo_vfm.diffusion.sampler import Sampler
from nemo_vfm.diffusion.step_cache import CachedSteps, FirstBlockCache
from nemo_vfm.parallel.engine.inference_model import SamplingRanks


class TextToVideo:
    """Text-to-video pipeline.

    Args:
        codec: the codec the network was trained with.
        text_encoder: the text encoder it was trained with.
        objective: the objective it was trained with.
        sampler: the solver, with its number of steps.
        guidance: how strongly the video follows the text.
        negative_prompt: text of the unconditional estimate, which guidance moves away from.
        noise_schedule: noise levels of the steps; None uses those of the objective.
        frame_conditioning: how the network receives given frames; None if it does not support them.
        step_cache: skips blocks whose output would hardly change, with an error that docs/how-to/video/sampling.md
            reports; None skips none.
        offload: keep text encoder, network and codec in host memory while they are not in use.
        family: pretrained family that these settings are for, a name of `conf/pipeline`; `check` compares it with the
            folder's. None compares nothing.
    """

    def __init__(
        self, *, codec: Codec, text_encoder: TextEncoder, objective: Objective, sampler: Sampler,
        guidance: ClassifierFree, negative_prompt: str = "", noise_schedule: NoiseSchedule | None = None,
        frame_conditioning: FrameConditioning | None = None, step_cache: FirstBlockCache | None = None,
        offload: bool = False, family: str | None = None,
    ) -> None:  # fmt: skip
        if negative_prompt and not guidance.acts():
            raise ValueError(
                f"negative_prompt {negative_prompt!r} has no effect at guidance scale 1; raise it or drop the prompt"
            )
        self.codec, self.text_encoder, self.objective = codec, text_encoder, objective
        self.sampler, self.guidance, self.negative_prompt = sampler, guidance, negative_prompt
        self.noise_schedule, self.frame_conditioning = noise_schedule, frame_conditioning
        self.step_cache, self.offload, self.family = step_cache, offload, family

    def is_for_another(self, family: str) -> bool:
        """Return whether these settings are for another pretrained family."""
        return self.family not in (None, family)

    def is_guided(self) -> bool:
        """Return whether sampling needs the unconditional estimate."""
        return self.guidance.acts()

    @torch.no_grad()
    def generate(
        self, model: nn.Module, prompts: Sequence[str], *, num_frames: int, height: int, width: int, fps: float,
        seed: int, repeats: Sequence[int] | None = None, given: Sequence[Tensor | None] | None = None,
    ) -> Tensor:  # fmt: skip
        """Generate one video per prompt; see `VideoRequest` for the arguments, and `make` for the rest.

        Returns:
            (B, T, H, W, 3), uint8, on the CPU.
        """
        request = VideoRequest(prompts=prompts, num_frames=num_frames, height=height, width=width, fps=fps, seed=seed,
                               repeats=repeats, given=given)  # fmt: skip
        videos = self.make(model, request)
        assert videos is not None, "a single process decodes"
        return videos.pixels_BTHWC

    @torch.no_grad()
    def make(
        self, model: nn.Module, request: VideoRequest, ranks: SamplingRanks | None = None,
        device: torch.device | None = None,
    ) -> GeneratedVideos | None:  # fmt: skip
        """Generate one video per prompt.

        Args:
            model: the network, in evaluation mode; with `offload` it may be in host memory.
            request: the videos to generate.
            ranks: the ranks that sample together, all of which must call this; None for a single process.
            device: where to compute; None uses the model's device.

        Returns:
            The videos; None on a rank that decodes none.
        """
        ranks, names = ranks or SamplingRanks(), request.names()
        device = device or next(model.parameters()).device
        moves = self.offload and ranks.has_plain_weights  # a network is not moved if ranks share its weights
        try:
            shape = self.codec.latent_shape(*request.size)
        except ValueError as error:
            raise UserError(str(error)) from None
        patch: object = next((one.patch for one in model.modules() if hasattr(one, "patch")), None)
        if isinstance(patch, tuple) and (text := side_without_patches(patch, shape[1:], request.size)):
            raise UserError(text)
        noise = _noise(shape, request.seed, names).to(device)
        known = self.encode_given(request.given, names, request.size, seed=request.seed)
        texts = self._encode_texts(request.prompts, device)
        self._offload(self.text_encoder, self.codec, self.frame_conditioning)
        if moves and not getattr(model, "one_on_device", False):  # else each is moved when it is called
            model.to(device)
        given = None if known is None else known.to(noise.device)
        sampled = partial(self._sample, model, texts, noise, request.fps, given, ranks)
        cache = None if self.step_cache is None else self.step_cache.begin(model)
        latents = sampled(cache)
        exact = sampled(None) if self.step_cache is not None and self.step_cache.measure else None
        if moves:
            model.to("cpu")
        if not ranks.writes:
            return None
        videos = self._decode(latents, cache, exact)
        self._offload(self.codec)
        return videos

    def _offload(self, *parts: object) -> None:
        for part in parts:
            if self.offload and isinstance(part, Offloadable):
                part.offload()

    @torch.no_grad()
    def latents(
        self, model: nn.Module, prompts: Sequence[str], noise: Tensor, *, fps: float, given: GivenFrames | None = None,
        ranks: SamplingRanks | None = None,
    ) -> Tensor:  # fmt: skip
        """Sample the latents of one video per prompt from noise, (B, C, T, H, W), fp32."""
        texts = self._encode_texts(prompts, noise.device)
        cache = None if self.step_cache is None else self.step_cache.begin(model)
        return self._sample(model, texts, noise, fps, given, ranks or SamplingRanks(), cache)

    def encode_given(
        self, clips: Sequence[Tensor | None] | None, names: Sequence[tuple[str | int, ...]],
        size: tuple[int, int, int], *, seed: int,
    ) -> GivenFrames | None:  # fmt: skip
        """Encode given frames for the network, with noise by seed and name; None if it does not support them.

        See `VideoRequest` for clips and size.
        """
        clips = list(clips) if clips is not None else [None] * len(names)
        if len(clips) != len(names):
            raise ValueError(f"given has {len(clips)} entries for {len(names)} prompts; give one (or None) per prompt")
        if self.frame_conditioning is None:
            if any(clip is not None for clip in clips):
                raise ValueError("frames are given, but the pipeline has no frame_conditioning; set it to the one "
                                 "that the network was trained with")  # fmt: skip
            return None
        frames, height, width = size
        each = []
        for clip in clips:
            if clip is None:
                clip = torch.zeros(0, height, width, 3, dtype=torch.uint8)
            if clip.shape[1:] != (height, width, 3) or len(clip) >= frames:
                raise ValueError(f"given frames have shape {tuple(clip.shape)}; expected fewer than {frames} frames of "
                                 f"shape {(height, width, 3)}")  # fmt: skip
            pixels = clip.permute(3, 0, 1, 2).float() / 127.5 - 1
            each.append(self.frame_conditioning.from_pixels(pixels, frames, self.codec))
        noise = _noise(tuple(each[0].latents_BCTHW.shape[1:]), seed, [("given", *name) for name in names])
        return replace(batch_of(each), noise_BCTHW=noise)

    def _encode_texts(self, prompts: Sequence[str], device: torch.device) -> tuple[Tensor, Tensor]:
        # A single call, so that an encoder that pads to the longest text pads the negative prompt equally.
        texts = [*prompts, self.negative_prompt] if self.guidance.acts() else list(prompts)
        text_BLD, mask_BL = (one.to(device) for one in self.text_encoder.encode(texts))
        if not self.guidance.acts():
            return text_BLD, mask_BL
        rows = torch.arange(2 * len(prompts)).clamp(max=len(prompts))  # repeats the negative prompt
        return text_BLD[rows], mask_BL[rows]

    def _decode(self, latents: Tensor, cache: CachedSteps | None, exact: Tensor | None) -> GeneratedVideos:
        """Pixels, and the figures of the step cache, whose error is measured against the `exact` latents."""
        pixels = _pixels(self.codec.decode(latents))
        if cache is None:
            return GeneratedVideos(pixels)
        errors: list[CacheError] = []
        if exact is not None:
            exact_pixels = _pixels(self.codec.decode(exact))
            for mine, theirs, shown, other in zip(latents, exact, pixels, exact_pixels, strict=True):
                difference = (mine - theirs).double().square().mean().sqrt() / theirs.double().std()
                mse = float((shown.double() - other.double()).square().mean())
                errors.append(CacheError(float(difference), inf if mse == 0 else 10 * log10(255**2 / mse)))
        return GeneratedVideos(pixels, *cache.counts(), errors)

    def _sample(
        self, model: nn.Module, texts: tuple[Tensor, Tensor], noise: Tensor, fps: float, given: GivenFrames | None,
        ranks: SamplingRanks, cache: CachedSteps | None,
    ) -> Tensor:  # fmt: skip
        steps, size, conditioning = self.sampler.num_steps(), tuple(noise.shape[2:]), self.frame_conditioning
        if (schedule := self.noise_schedule) is None:
            sigmas = self.objective.schedule(steps, size)
        else:
            sigmas = schedule.sigmas(steps, size)
            noise = noise.double() * (schedule.first_noise(sigmas) / float(sigmas[0]))
        denoiser = GuidedDenoiser(
            model, self.objective, self.guidance, *texts, fps, conditioning, given, ranks, cache
        )  # fmt: skip
        result = self.sampler.draw(denoiser, noise, sigmas)
        # If a schedule ends above 0, the final state contains the clean latents scaled by this factor.
        latents = result.latents.float() / self.objective.scale(float(sigmas[-1]))
        # Only at the end: during sampling the network's inputs replace the state of given frames.
        if conditioning is None or given is None or (known := conditioning.given_mask(given)) is None:
            return latents
        return torch.where(known, given.latents_BCTHW.to(latents), latents)


def side_without_patches(patch: tuple[int, ...], latents: tuple[int, ...], pixels: tuple[int, ...]) -> str:
    """Why a height or width in pixels has no whole patches, and which have; empty where both have."""
    for axis, name in ((1, "height"), (2, "width")):
        side, cut = latents[axis], patch[axis]
        if side % cut:
            step = cut * pixels[axis] // side
            low = max(pixels[axis] // step, 1) * step
            return (f"{name} {pixels[axis]} makes latents of {side}, which the network cannot cut into patches of "
                    f"{cut}; use {low} or {low + step}")  # fmt: skip
    return ""


def _noise(shape: Sequence[int], seed: int, names: Sequence[tuple[str | int, ...]]) -> Tensor:
    """Generate noise (B, *shape), each entry from the seed and its name."""
    return torch.stack([torch.randn(tuple(shape), generator=generator(seed, *name)) for name in names])


def _pixels(video_BCTHW: Tensor) -> Tensor:
    return ((video_BCTHW.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).contiguous().cpu()
