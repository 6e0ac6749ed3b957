"""Chooses the sampling pipeline of a diffusers folder by the family of video models that the folder holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_vfm.core import log
from nemo_vfm.core.bounds import MAX_STEPS, require_between
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.frame_count import LatentFrames
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.precision import PrecisionName
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.encoders import Family
from nemo_vfm.diffusion.conditioning.in_channels import GivenInChannels
from nemo_vfm.diffusion.conditioning.in_time import GivenInTime
from nemo_vfm.diffusion.frame_conditioning import FrameConditioning
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.noise_schedule import KarrasSigmas, UniPCFlowSigmas
from nemo_vfm.diffusion.objective import EDM, FlowMatching
from nemo_vfm.diffusion.sampler import Euler
from nemo_vfm.diffusion.step_cache import FirstBlockCache
from nemo_vfm.diffusion.unipc import UniPC
from nemo_vfm.diffusion.video_pipeline import TextToVideo
from nemo_vfm.models.adapters.load_adapters import Network
from nemo_vfm.models.convert.video.pretrained_video import TWO_NETWORKS, boundary_in, family_in, scheduler_in
from nemo_vfm.models.diffusers_codec import DiffusersCodec
from nemo_vfm.models.image_tokens import ClipImageTokens
from nemo_vfm.models.transformers_text import TransformersTextEncoder

#: Attributes of `TextToVideo` that depend on the family.
PARTS = ("codec", "text_encoder", "objective", "sampler", "guidance", "noise_schedule", "frame_conditioning")
#: Family -> shift of noise levels, steps and guidance scale of Wan, as in `conf/pipeline`.
_WAN = {"wan21_t2v": (3.0, 50, 5.0), "wan21_i2v": (3.0, 50, 5.0), "wan22_t2v": (3.0, 40, 4.0),
        "wan22_i2v": (5.0, 40, 3.5), "wan22_ti2v": (5.0, 50, 5.0)}  # fmt: skip


@needs_packages("diffusers", "transformers")
class FolderPipeline(TextToVideo):
    """The pipeline of a diffusers folder: that of `conf/pipeline` for the family which its files name.

    A `flow_shift` of its scheduler_config.json replaces the family's. To change other settings, name the family.

    Args:
        folder: a diffusers pipeline folder; read at the first use, since it may be written when the run begins.
        random_base: family of a folder that is not there yet, as under `--overlay smoke`; None leaves it unknown.
        steps: steps of the sampler; None takes the family's number.
        guidance_scale: how strongly the video follows the text; None takes the family's scale.
        negative_prompt: see `TextToVideo`.
        network: the one of two networks (Wan 2.2 A14B) that a training is for: `transformer` learns the noise levels
            above the folder's boundary, `transformer_2` those below. None where there is one, and for sampling.
        template: what the text encoder of Cosmos-Predict2.5 reads, with {caption}; other families need none.
        precision: of the text encoder: auto, bf16 or fp32.
        step_cache: see `TextToVideo`.
        offload: see `TextToVideo`.

    Raises:
        ValueError: steps below 1, or a negative prompt without guidance.
    """

    def __init__(
        self, *, folder: Path, random_base: Family | None = None, steps: int | None = None,
        guidance_scale: float | None = None, negative_prompt: str = "", network: Network | None = None,
        template: str | None = None, precision: PrecisionName = "auto", step_cache: FirstBlockCache | None = None,
        offload: bool = False,
    ) -> None:  # fmt: skip
        if steps is not None:
            require_between(1, MAX_STEPS, steps=steps)
        if negative_prompt and guidance_scale == 1:
            raise ValueError(
                f"negative_prompt {negative_prompt!r} has no effect at guidance_scale 1; raise guidance_scale"
            )
        self.folder, self.steps, self.guidance_scale = local(folder, "a pretrained pipeline"), steps, guidance_scale
        self.negative_prompt, self.template, self.precision = negative_prompt, template, precision
        self.network: Network | None = network
        self.step_cache, self.offload, self.random_base = step_cache, offload, random_base

    def __getattr__(self, name: str) -> Any:
        """Make all parts when the first one is used."""
        if name not in (*PARTS, "family"):
            raise AttributeError(f"FolderPipeline has no {name}")
        found = family_in(self.folder) if self.folder.is_dir() else self.random_base
        if found is None:
            raise UserError(f"{self.folder} has no video model that can be read, so its pipeline is unknown; "
                            "give a diffusers pipeline of Cosmos or Wan, or name the family, such as wan21_t2v, "
                            f"instead of auto")  # fmt: skip
        if self.network is not None and found not in TWO_NETWORKS:
            raise UserError(f"network is {self.network}, but {self.folder} holds a {found}, which has one network; "
                            f"remove network")  # fmt: skip
        made = self._wan(found) if found in _WAN else self._cosmos(found)
        vars(self).update({part: getattr(made, part) for part in (*PARTS, "family")})
        return vars(self)[name]

    def late_parts(self) -> Mapping[str, object]:
        """See `MakesPartsLate`."""
        return {part: getattr(self, part) for part in PARTS}

    def is_guided(self) -> bool:
        """See `TextToVideo`; every family is guided."""
        return self.guidance_scale != 1

    def _wan(self, family: Family) -> TextToVideo:
        shift, steps, scale = _WAN[family]
        scale = scale if self.guidance_scale is None else self.guidance_scale
        given = scheduler_in(self.folder).get("flow_shift")
        if isinstance(given, int | float) and given != shift:
            log.info(
                f"{self.folder.name}/scheduler_config.json has flow_shift {given}, which replaces {shift} of {family}"
            )
            shift = float(given)
        levels = (0.0, 1.0)
        if self.network is not None:
            boundary = boundary_in(self.folder)
            levels = (boundary, 1.0) if self.network == "transformer" else (0.0, boundary)
        conditioning: FrameConditioning | None = None
        if family == "wan22_ti2v":
            conditioning = GivenInTime(most=LatentFrames(1), level=0.0, mask=False)
        elif family == "wan21_i2v":
            image, processor = self.folder / "image_encoder", self.folder / "image_processor"
            conditioning = GivenInChannels(image_encoder=ClipImageTokens(folder=image, processor=processor))
        elif family == "wan22_i2v":
            conditioning = GivenInChannels()
        low = (3.0, 0.875) if family == "wan22_t2v" and self.guidance_scale is None else (None, None)
        return TextToVideo(
            codec=DiffusersCodec(folder=self.folder), text_encoder=self._text_encoder(),
            objective=FlowMatching(shift=shift, timesteps=1000, drawn=levels),
            noise_schedule=UniPCFlowSigmas(shift=shift),
            sampler=UniPC(steps=self.steps or steps, order=2, variant="b2"), family=family,
            guidance=ClassifierFree(scale=scale, low_scale=low[0], low_below_sigma=low[1]),
            frame_conditioning=conditioning, negative_prompt=self.negative_prompt,
        )  # fmt: skip

    def _cosmos(self, family: Family) -> TextToVideo:
        is_first, is_newest = family.startswith("cosmos1"), family == "cosmos25"
        levels = KarrasSigmas(sigma_max=80.0, sigma_min=0.002, flow=not is_first, ends_at_zero=False)
        conditioning = {
            "cosmos1_video": GivenInTime(sigma=0.001, sigma_log_mean=-3.0, sigma_log_std=2.0, level=None),
            "cosmos25": GivenInTime(none_given=0.5, level=1e-4), "cosmos2_video": GivenInTime(level=1e-4),
        }.get(family)  # fmt: skip
        if is_newest and self.template is None:
            raise UserError(f"{self.folder} holds a Cosmos-Predict2.5, whose text encoder reads the model's chat "
                            f"template; give template=..., with {{caption}} in it")  # fmt: skip
        steps = self.steps or (35 if family.startswith("cosmos2_") else 36)
        return TextToVideo(
            codec=DiffusersCodec(folder=self.folder, scale=0.5 if is_first else 1.0),
            text_encoder=self._text_encoder(layers="all", normalize=True, reads_padding=True, template=self.template)
            if is_newest else self._text_encoder(),
            objective=EDM(sigma_data=0.5) if is_first else FlowMatching(),
            noise_schedule=KarrasSigmas(sigma_max=200.0, sigma_min=0.01, flow=True, whole_noise=True)
            if is_newest else levels,
            sampler=UniPC(steps=steps, order=2, variant="b2") if is_newest else Euler(steps=steps),
            guidance=ClassifierFree(scale=8.0 if self.guidance_scale is None else self.guidance_scale),
            frame_conditioning=conditioning, family=family, negative_prompt=self.negative_prompt,
        )  # fmt: skip

    def _text_encoder(self, **layered: Any) -> TransformersTextEncoder:
        return TransformersTextEncoder(folder=self.folder / "text_encoder", tokenizer=self.folder / "tokenizer",
                                       max_tokens=512, precision=self.precision, **layered)  # fmt: skip
