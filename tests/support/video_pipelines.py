"""Saves whole pipelines of diffusers with tiny random parts, one for each family of video models, and calls them.

Two things of diffusers are replaced, as its import asks: torchvision, and the checker of Cosmos' prompts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from tests.models.test_diffusers_codec import COSMOS as COSMOS_VAE
from tests.models.test_diffusers_codec import WAN as WAN_VAE
from tests.models.test_diffusers_codec import WAN_22 as WAN_22_VAE
from tests.support.text_folders import text_folder
from tests.support.torchvision_resize import stand_in
from tests.support.video_peers import COSMOS, COSMOS_2, WAN

RECIPE = Path(__file__).resolve().parents[2] / "recipes/world_model/sample_pretrained.yaml"
PROMPTS, NEGATIVE = ["a red square moving left", "two blue circles"], "blurred"
STEPS, FRAMES, GUIDANCE = 8, 9, 5.0
#: The template of the tiny Qwen's tokenizer.
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text }}{% endfor %}"


class Checker:
    """Lets all prompts and videos pass."""

    def to(self, device: object) -> None:
        """Nothing to move."""

    def check_text_safety(self, text: str) -> bool:
        return True

    def check_video_safety(self, video: object) -> object:
        return video


@dataclass(frozen=True)
class Pipeline:
    """One family.

    Args:
        kind: class of the pipeline.
        transformer: config of its transformer.
        vae: class and config of its autoencoder.
        text: family of its text encoder.
        scheduler: class and config.
        given: pixel frames that it is given, and the name of the argument.
        settings: of the pipeline itself.
        call: arguments of a call besides.
        image_tokens: whether it looks at the image through a CLIP.
        side: pixels of a side.
        ours: our ingredient.
    """

    kind: str
    transformer: dict[str, Any]
    vae: tuple[str, dict[str, Any]]
    text: str
    scheduler: tuple[str, dict[str, Any]]
    given: tuple[int, str] = (0, "")
    settings: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
    image_tokens: bool = False
    side: int = 32
    ours: str = ""


_UNIPC = ("UniPCMultistepScheduler", {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0})
_WAN = ("AutoencoderKLWan", WAN_VAE)
_IN_CHANNELS = WAN | {"in_channels": 12}
_EDM = (
    "EDMEulerScheduler",
    {"sigma_min": 0.002, "sigma_max": 80.0, "sigma_data": 0.5, "final_sigmas_type": "sigma_min"},
)
_COSMOS_25 = COSMOS_2 | {
    "use_crossattn_projection": True,
    "crossattn_proj_in_channels": 32,
    "encoder_hidden_states_channels": 16,
}
_KARRAS = (
    "UniPCMultistepScheduler", {"use_karras_sigmas": True, "use_flow_sigmas": True, "sigma_max": 200.0,
                                "sigma_min": 0.01, "prediction_type": "flow_prediction"},
)  # fmt: skip
PIPELINES = {
    "wan 2.1 text": Pipeline("WanPipeline", WAN, _WAN, "umt5", _UNIPC, ours="wan21_t2v"),
    "wan 2.1 text, Euler": Pipeline(
        "WanPipeline", WAN, _WAN, "umt5", ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
        ours="wan21_t2v",
    ),
    "wan 2.1 image": Pipeline("WanImageToVideoPipeline", _IN_CHANNELS | {"image_dim": 16, "added_kv_proj_dim": 48},
                              _WAN, "umt5", _UNIPC, (1, "image"), image_tokens=True, ours="wan21_i2v"),
    "wan 2.2 ti2v": Pipeline("WanImageToVideoPipeline", WAN, ("AutoencoderKLWan", WAN_22_VAE), "umt5", _UNIPC,
                             (1, "image"), {"expand_timesteps": True}, side=64, ours="wan22_ti2v"),
    "wan 2.2 a14b text": Pipeline("WanPipeline", WAN, _WAN, "umt5", _UNIPC, (0, ""), {"boundary_ratio": 0.875},
                                  {"guidance_scale_2": 2.0}, ours="wan22_t2v"),
    "wan 2.2 a14b image": Pipeline("WanImageToVideoPipeline", _IN_CHANNELS, _WAN, "umt5", _UNIPC, (1, "image"),
                                   {"boundary_ratio": 0.9}, ours="wan22_i2v"),
    "cosmos 1 text": Pipeline("CosmosTextToWorldPipeline", COSMOS, ("AutoencoderKLCosmos", COSMOS_VAE), "t5", _EDM,
                              call={"fps": 12}, ours="cosmos1_text"),
    # Noise on what is given, of 0.001, is drawn by each library for itself, which makes a difference of 1.1e-3.
    "cosmos 1 video": Pipeline("CosmosVideoToWorldPipeline", COSMOS | {"in_channels": 5},
                               ("AutoencoderKLCosmos", COSMOS_VAE), "t5", _EDM, (1, "video"),
                               call={"fps": 12, "augment_sigma": 0.0}, ours="cosmos1_video"),
    "cosmos 2 image": Pipeline("Cosmos2TextToImagePipeline", COSMOS_2 | {"in_channels": 4}, _WAN, "t5",
                               ("FlowMatchEulerDiscreteScheduler", {"use_karras_sigmas": True}), ours="cosmos2_image"),
    "cosmos 2 video": Pipeline("Cosmos2VideoToWorldPipeline", COSMOS_2, _WAN, "t5",
                               ("FlowMatchEulerDiscreteScheduler", {"use_karras_sigmas": True}), (5, "video"),
                               call={"fps": 16}, ours="cosmos2_video"),
    "cosmos 2.5": Pipeline("Cosmos2_5_PredictBasePipeline", _COSMOS_25, _WAN, "qwen_vl", _KARRAS, ours="cosmos25"),
    "cosmos 2.5 video": Pipeline("Cosmos2_5_PredictBasePipeline", _COSMOS_25, _WAN, "qwen_vl", _KARRAS, (5, "video"),
                                 ours="cosmos25"),
}  # fmt: skip


def random_weights(model: nn.Module, seed: int, size: float = 0.1) -> nn.Module:
    """Without zeros; the deviation of an autoencoder's latents is next to none, as it is of a trained one."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))
        if (quant := getattr(model, "quant_conv", None)) is not None:
            half = quant.weight.shape[0] // 2
            if type(model).__name__ == "AutoencoderKLWan":
                quant.weight[half:] = 0
                quant.bias[half:] = -30
    return model.eval()


def saved(name: str, folder: Path) -> Path:
    """The folder, as diffusers saves it."""
    stand_in()
    import diffusers
    import transformers

    one = PIPELINES[name]
    words = text_folder(folder.with_name(f"{folder.name}-text"), one.text)
    tokenizer = transformers.AutoTokenizer.from_pretrained(words)
    if one.text == "qwen_vl":
        tokenizer.chat_template, tokenizer.padding_side = CHAT, "right"
    encoder = {"umt5": "UMT5EncoderModel", "t5": "T5EncoderModel", "qwen_vl": "Qwen2_5_VLForConditionalGeneration"}
    kind, config = one.vae
    wan = "ffn_dim" in one.transformer
    transformer = diffusers.WanTransformer3DModel if wan else diffusers.CosmosTransformer3DModel
    parts: dict[str, Any] = {
        "tokenizer": tokenizer, "text_encoder": getattr(transformers, encoder[one.text]).from_pretrained(words),
        "vae": random_weights(getattr(diffusers, kind)(**config), 1, 0.02),
        "scheduler": getattr(diffusers, one.scheduler[0])(**one.scheduler[1]),
        "transformer": random_weights(transformer(**one.transformer), 2),
    }  # fmt: skip
    if "boundary_ratio" in one.settings:
        parts["transformer_2"] = random_weights(transformer(**one.transformer), 3)
    if one.image_tokens:
        parts |= image_parts(folder.with_name(f"{folder.name}-image"))
    if not wan:
        parts["safety_checker"] = Checker()
    whole = getattr(diffusers, one.kind)(**parts, **one.settings)
    whole.register_modules(**{"safety_checker": None} if not wan else {})
    whole.save_pretrained(folder)
    return folder


def image_parts(folder: Path) -> dict[str, Any]:
    """A tiny CLIP and its processor."""
    import transformers

    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    encoder = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(image_size=28, patch_size=14, **size))
    sides = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    processor = transformers.CLIPImageProcessorPil if hasattr(transformers, "CLIPImageProcessorPil") else None
    processor = processor or transformers.CLIPImageProcessor
    return {"image_encoder": random_weights(encoder, 4), "image_processor": processor(**sides)}


def pixels(name: str, seed: int = 5) -> Tensor:
    """The given frames, (T, H, W, 3), uint8; the same for each prompt."""
    one = PIPELINES[name]
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (one.given[0], 4, 4, 3), dtype=np.uint8)
    return torch.from_numpy(coarse).repeat_interleave(one.side // 4, 1).repeat_interleave(one.side // 4, 2)


def noise(name: str, shape: tuple[int, ...], prompts: int) -> Tensor:
    return torch.randn(prompts, *shape, generator=torch.Generator().manual_seed(6))


@torch.no_grad()
def drawn(name: str, folder: Path, given_noise: Tensor, prompts: list[str]) -> Tensor:
    """Latents by diffusers, called as a user calls it."""
    stand_in()
    import diffusers

    one = PIPELINES[name]
    kind: Callable[..., Any] = getattr(diffusers, one.kind)
    checker = {} if one.kind.startswith("Wan") else {"safety_checker": Checker()}
    whole = kind.from_pretrained(folder, **checker)  # type: ignore[attr-defined]
    whole.set_progress_bar_config(disable=True)
    images = [Image.fromarray(frame.numpy()) for frame in pixels(name)]
    given = {one.given[1]: images[0] if one.given[1] == "image" else images} if one.given[0] else {}
    latents: Any = whole(
        prompt=prompts, negative_prompt=[NEGATIVE] * len(prompts), height=one.side, width=one.side,
        num_inference_steps=STEPS, guidance_scale=GUIDANCE, latents=given_noise.clone(), output_type="latent",
        max_sequence_length=tokens(name), generator=torch.Generator().manual_seed(7), return_dict=False,
        **({} if frames(name) == 1 else {"num_frames": frames(name)}), **given, **one.call,
    )[0]  # fmt: skip
    return latents if one.given[0] or frames(name) > 1 else latents.reshape(given_noise.shape)


def tokens(name: str) -> int:
    """That a text is padded to; the tiny Qwen has room for 256."""
    return 200 if PIPELINES[name].text == "qwen_vl" else 512


def frames(name: str) -> int:
    if "TextToImage" in PIPELINES[name].kind:
        return 1
    return 17 if PIPELINES[name].vae[0] == "AutoencoderKLCosmos" else FRAMES


def words(name: str, folder: Path) -> list[str]:
    """What a user types after `nemo-vfm run recipes/world_model/sample_pretrained.yaml` for the same video."""
    one = PIPELINES[name]
    wan = one.kind.startswith("Wan")
    typed = [f"base={folder}", f"pipeline={one.ours}", f"num_frames={frames(name)}", f"height_px={one.side}",
             f"width_px={one.side}", f"fps={one.call.get('fps', 16)}", f"pipeline.sampler.steps={STEPS}",
             f"pipeline.negative_prompt={NEGATIVE}", f"pipeline.guidance.scale={GUIDANCE + (0 if wan else 1)}",
             "pipeline.text_encoder.precision='fp32'", f"given_frames={max(1, one.given[0])} pixel frames"]  # fmt: skip
    if one.scheduler[0].startswith("FlowMatchEuler") and wan:
        schedule = "nemo_vfm.diffusion.noise_schedule.FlowMatchEulerSigmas"
        typed += [f"pipeline.noise_schedule={{_target_: {schedule}, shift: 3.0}}", "pipeline.sampler=euler",
                  f"pipeline.sampler.steps={STEPS}", "pipeline.objective.timesteps=null"]  # fmt: skip
    if "boundary_ratio" in one.settings:
        typed += ["model=pretrained_experts", "pipeline.noise_schedule.shift=3.0"]
    if "guidance_scale_2" in one.call:
        typed += [f"pipeline.guidance.low_scale={one.call['guidance_scale_2']}"]
    if one.call.get("augment_sigma") == 0:
        typed += ["pipeline.frame_conditioning.sigma=0"]
    if one.ours == "wan22_ti2v":
        typed += ["pipeline.noise_schedule.shift=3.0"]
    if one.text == "qwen_vl":
        typed += [f"pipeline.text_encoder.template='{chat_template(folder)}'",
                  f"pipeline.text_encoder.max_tokens={tokens(name)}"]  # fmt: skip
    return typed


def chat_template(folder: Path) -> str:
    """What diffusers lets the tiny Qwen read, with {caption} in it."""
    stand_in()
    import diffusers
    import transformers

    tokenizer, asked = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"), []
    apply = tokenizer.apply_chat_template
    tokenizer.apply_chat_template = lambda said, **how: asked.append(said) or apply(said, **how)
    encoder = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(folder / "text_encoder")
    whole = diffusers.Cosmos2_5_PredictBasePipeline.from_pretrained(
        folder, tokenizer=tokenizer, text_encoder=encoder, safety_checker=Checker()
    )
    whole._get_prompt_embeds("{caption}", max_sequence_length=200)
    return str(apply(asked[0], tokenize=False))


@dataclass(frozen=True)
class Compared:
    """One family drawn by both.

    Args:
        theirs: latents of diffusers.
        ours: and ours.
        given: latent frames that were given.
    """

    theirs: Tensor
    ours: Tensor
    given: int

    def made_difference(self) -> float:
        """The largest over the deviation, of frames that were made."""
        return self._of(slice(self.given, None))

    def given_difference(self) -> float:
        """The same of frames that were given, which we return as they are; 0 where none were."""
        return self._of(slice(self.given)) if self.given else 0.0

    def _of(self, place: slice) -> float:
        return float((self.ours - self.theirs)[:, :, place].abs().max() / self.theirs.std())


def compared(name: str, folder: Path) -> Compared:
    """Latents of the same folder, prompt, frames and noise; two prompts at once where diffusers takes two."""
    from nemo_vfm.config import build, compose
    from nemo_vfm.models.convert.video.pretrained_video import load_pretrained
    from nemo_vfm.parallel.apply.build_model import build_model

    one = PIPELINES[name]
    job = build(compose(RECIPE, words(name, saved(name, folder))))
    size = frames(name), one.side, one.side
    prompts = PROMPTS[:1] if one.given[0] else PROMPTS
    start = noise(name, job.pipeline.codec.latent_shape(*size), len(prompts))
    model = build_model(job.model, 0).eval()
    load_pretrained(model, folder)
    clips = [pixels(name)] * len(prompts) if one.given[0] else None
    given = job.pipeline.encode_given(clips, [("parity", text, 0) for text in prompts], size, seed=3)
    ours = job.pipeline.latents(model, prompts, start, fps=job.fps, given=given)
    known = None if given is None else job.pipeline.frame_conditioning.given_mask(given)
    return Compared(drawn(name, folder, start, prompts), ours, 0 if known is None else int(known[0].sum()))
