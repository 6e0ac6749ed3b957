"""Writes a tiny randomly initialised diffusers pipeline, so that a recipe can be tried without pretrained weights."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from nemo_vfm.core import log
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import require
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.encoders import Family

_WIDTH, _CHANNELS, _SPECIAL = 16, 4, ("<pad>", "<s>", "</s>", "<unk>")
_WAN: dict[str, Any] = {
    "num_attention_heads": 2, "attention_head_dim": 24, "in_channels": _CHANNELS, "out_channels": _CHANNELS,
    "text_dim": _WIDTH, "freq_dim": 32, "ffn_dim": 96, "num_layers": 2,
}  # fmt: skip
_CONDITIONED = {"in_channels": 2 * _CHANNELS + 4}  # noisy latents, four mask channels, conditioning latents
_COSMOS: dict[str, Any] = {
    "in_channels": _CHANNELS, "out_channels": _CHANNELS, "num_attention_heads": 2, "attention_head_dim": 24,
    "num_layers": 2, "text_embed_dim": _WIDTH, "adaln_lora_dim": 8,
}  # fmt: skip
_MASKED = {"in_channels": _CHANNELS + 1}
_COSMOS_2: dict[str, Any] = {"extra_pos_embed_type": None, "rope_scale": (1.0, 3.0, 3.0)}
_LAYERS = {
    "use_crossattn_projection": True, "crossattn_proj_in_channels": 2 * _WIDTH,
    "encoder_hidden_states_channels": _WIDTH,
}  # fmt: skip
_WAN_VAE: dict[str, Any] = {
    "base_dim": 8, "z_dim": _CHANNELS, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "latents_mean": [0.0] * _CHANNELS,
    "latents_std": [1.0] * _CHANNELS,
}  # fmt: skip
_VAES: dict[str, tuple[str, dict[str, Any]]] = {
    "wan 2.1": ("AutoencoderKLWan", _WAN_VAE),
    "wan 2.2": ("AutoencoderKLWan", _WAN_VAE | {
        "decoder_base_dim": 8, "is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2,
        "scale_factor_spatial": 16,
    }),
    "cosmos": ("AutoencoderKLCosmos", {
        "latent_channels": _CHANNELS, "encoder_block_out_channels": (8, 8, 8, 8),
        "decode_block_out_channels": (8, 8, 8, 8), "attention_resolutions": (8,), "resolution": 64, "num_layers": 1,
        "latents_mean": None, "latents_std": None,
    }),
}  # fmt: skip
_SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "wan": ("UniPCMultistepScheduler", {
        "prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0,
    }),
    "cosmos1": ("EDMEulerScheduler", {
        "sigma_min": 0.002, "sigma_max": 80.0, "sigma_data": 0.5, "final_sigmas_type": "sigma_min",
    }),
    "cosmos2": ("FlowMatchEulerDiscreteScheduler", {"use_karras_sigmas": True}),
    "cosmos25": ("UniPCMultistepScheduler", {
        "use_karras_sigmas": True, "use_flow_sigmas": True, "sigma_max": 200.0, "sigma_min": 0.01,
        "prediction_type": "flow_prediction",
    }),
}  # fmt: skip
#: Optional components, which diffusers requires as null entries in the index if they are absent.
_OPTIONAL = {
    "WanPipeline": ("transformer_2",), "WanImageToVideoPipeline": ("transformer_2", "image_encoder", "image_processor"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Parts:
    """The components of a family's pipeline."""

    kind: str  #: class of the pipeline
    transformer: dict[str, Any]  #: config of the transformer
    vae: str = "wan 2.1"  #: key of `_VAES`
    text: str = "UMT5EncoderModel"  #: class of the text encoder
    image_tokens: bool = False  #: whether the pipeline has a CLIP image encoder
    #: arguments of the pipeline itself; a boundary_ratio adds a second transformer
    settings: dict[str, Any] = field(default_factory=dict)


_IMAGE = {"image_dim": _WIDTH, "added_kv_proj_dim": 48}
_FAMILIES: dict[str, _Parts] = {
    "wan21_t2v": _Parts("WanPipeline", _WAN),
    "wan21_i2v": _Parts("WanImageToVideoPipeline", _WAN | _CONDITIONED | _IMAGE, image_tokens=True),
    "wan22_t2v": _Parts("WanPipeline", _WAN, settings={"boundary_ratio": 0.875}),
    "wan22_i2v": _Parts("WanImageToVideoPipeline", _WAN | _CONDITIONED, settings={"boundary_ratio": 0.9}),
    "wan22_ti2v": _Parts("WanImageToVideoPipeline", _WAN, "wan 2.2", settings={"expand_timesteps": True}),
    "cosmos1_text": _Parts("CosmosTextToWorldPipeline", _COSMOS, "cosmos", "T5EncoderModel"),
    "cosmos1_video": _Parts("CosmosVideoToWorldPipeline", _COSMOS | _MASKED, "cosmos", "T5EncoderModel"),
    "cosmos2_image": _Parts("Cosmos2TextToImagePipeline", _COSMOS | _COSMOS_2, text="T5EncoderModel"),
    "cosmos2_video": _Parts("Cosmos2VideoToWorldPipeline", _COSMOS | _COSMOS_2 | _MASKED, text="T5EncoderModel"),
    "cosmos25": _Parts(
        "Cosmos2_5_PredictBasePipeline", _COSMOS | _COSMOS_2 | _MASKED | _LAYERS,
        text="Qwen2_5_VLForConditionalGeneration",
    ),
}  # fmt: skip


def prepare_base(base: Path | None, family: Family | None, run_folder: Path) -> None:
    """Check that a recipe's `base` exists, so that one error replaces one error per component.

    Inside the run folder, a tiny random pipeline of the family is written to it.
    """
    if base is None or base.is_dir():
        return
    from nemo_vfm.models.hub.hub_names import get_hint

    if family is None or not base.resolve().is_relative_to(run_folder.resolve()):
        raise UserError(f"{base} is not a folder; set base=FOLDER to a pretrained diffusers pipeline; "
                        f"{get_hint(base)} downloads one")  # fmt: skip
    log.info(f"no pretrained pipeline was given; writing a tiny random {family} pipeline to {base}")
    write_random_pipeline(base, family)


def write_random_pipeline(folder: Path, family: Family) -> None:
    """Write a pipeline atomically; if several ranks write the same folder, the first one wins."""
    purpose = "a tiny random pipeline"
    diffusers = require("diffusers", purpose=purpose)
    transformers = require("transformers", purpose=purpose)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            kind, config = next(_SCHEDULERS[name] for name in reversed(_SCHEDULERS) if family.startswith(name))
            _write(temporary, _FAMILIES[family], getattr(diffusers, kind)(**config), diffusers, transformers)
        with suppress(OSError):  # another rank was first
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, parts: _Parts, scheduler: object, diffusers: ModuleType, transformers: ModuleType) -> None:
    from nemo_vfm.models.pretrained import PIPELINE

    absent = {name: [None, None] for name in _OPTIONAL.get(parts.kind, ("safety_checker",))}
    index: dict[str, Any] = {"_class_name": parts.kind, **parts.settings, **absent}
    kind, config = _VAES[parts.vae]
    network = "WanTransformer3DModel" if parts.kind.startswith("Wan") else "CosmosTransformer3DModel"
    components: dict[str, Callable[[], Any]] = {
        "scheduler": lambda: scheduler,
        "vae": lambda: getattr(diffusers, kind)(**config),
        "text_encoder": lambda: _text_encoder(parts.text, transformers),
        "tokenizer": lambda: _tokenizer(transformers),
        "transformer": lambda: getattr(diffusers, network)(**parts.transformer),
    }
    if "boundary_ratio" in parts.settings:
        components["transformer_2"] = components["transformer"]
    if parts.image_tokens:
        sizes = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
        clip = {"hidden_size": _WIDTH, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
        components["image_encoder"] = lambda: transformers.CLIPVisionModel(
            transformers.CLIPVisionConfig(image_size=28, patch_size=14, **clip)
        )
        components["image_processor"] = lambda: transformers.CLIPImageProcessorPil(**sizes)
    for name, make in components.items():
        part = make()
        part.save_pretrained(folder / name)
        index[name] = [type(part).__module__.partition(".")[0], type(part).__name__]
    write_json(folder / PIPELINE, index)


def _text_encoder(kind: str, hf: ModuleType) -> Any:
    words = {"vocab_size": 256 + len(_SPECIAL), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if kind != "Qwen2_5_VLForConditionalGeneration":
        config = hf.UMT5Config if kind.startswith("UMT5") else hf.T5Config
        size = {"d_model": _WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        return getattr(hf, kind)(config(**size, **words))
    size = {"hidden_size": _WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10_000.0}
    text = {"num_key_value_heads": 1, "max_position_embeddings": 1024, "rope_parameters": rope, **size, **words}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": _WIDTH}
    return getattr(hf, kind)(hf.Qwen2_5_VLConfig(text_config=text, vision_config=vision))


def _tokenizer(hf: ModuleType) -> Any:
    """Create a byte-level tokenizer that appends an end token."""
    library = require("tokenizers", purpose="a tiny random pipeline")
    level = library.pre_tokenizers.ByteLevel
    words = {word: number for number, word in enumerate([*_SPECIAL, *sorted(level.alphabet())])}
    tokenizer = library.Tokenizer(library.models.BPE(vocab=words, merges=[], unk_token=_SPECIAL[3]))
    tokenizer.pre_tokenizer, tokenizer.decoder = level(add_prefix_space=False), library.decoders.ByteLevel()
    ends = [("</s>", words["</s>"])]
    tokenizer.post_processor = library.processors.TemplateProcessing("$A </s>", special_tokens=ends)
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), _SPECIAL, strict=True))
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
