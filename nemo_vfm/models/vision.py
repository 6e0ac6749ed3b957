"""Computes one feature vector per frame of any size, by an image encoder from a local Hugging Face folder.

Shape letters: B batch, C channels, T frames, H height, W width, F frames of all samples, D width of a feature.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.optional import require
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.json_value import Json

#: model_type of config.json -> (class in transformers, output that is the image's feature)
_ENCODERS = {
    "clip": ("CLIPVisionModelWithProjection", "image_embeds"),
    "clip_vision_model": ("CLIPVisionModelWithProjection", "image_embeds"),
    "siglip": ("SiglipVisionModel", "pooler_output"),
    "siglip_vision_model": ("SiglipVisionModel", "pooler_output"),
}
_TEXT_PARTS = ("text_model.", "text_projection.", "logit_scale", "logit_bias")
_SHOWN = 4


@no_component
class ImageEncoder(nn.Module):
    """CLIP or SigLIP, pictures made ready inside.

    Pixels are 0 to 255, uint8. They are resized, cropped and normalised as the folder's preprocessor_config.json says;
    resizing on a CPU gives Pillow's bytes. Only safetensors are read, and no code of the folder is run.

    Args:
        folder: with config.json, preprocessor_config.json and model.safetensors (or its index and parts).
    """

    def __init__(self, *, folder: Path) -> None:
        super().__init__()
        config = read_config(folder, "config.json")
        kind = str(config.get("model_type"))
        if kind not in _ENCODERS:
            if "auto_map" in config or "cosmos" in kind.lower():
                raise UserError(
                    f"{folder} holds a model ({config.get('model_type')}) that comes as its own Python code, which is "
                    f"never run. Supported are CLIP and SigLIP; for Cosmos-Embed1, use the stage "
                    f"nemo_vfm.curate.learned.cosmos_embed.CosmosEmbed"
                )
            raise UserError(f"{folder} holds a model of type {config.get('model_type')!r}; supported image encoders "
                            f"are CLIP and SigLIP")  # fmt: skip
        name, self._feature = _ENCODERS[kind]
        self._pictures = Pictures(folder, read_config(folder, "preprocessor_config.json"))
        self.encoder = load_encoder(folder, name)
        sizes: Json = self.encoder.config
        self.width = int(sizes.projection_dim if self._feature == "image_embeds" else sizes.hidden_size)

    def forward(self, video_BCTHW: Tensor) -> Tensor:
        """Features (B, T, D), as the encoder gives them: not normalised."""
        batch, _, frames = video_BCTHW.shape[:3]
        pixels_FCHW = self._pictures.preprocess(video_BCTHW.transpose(1, 2).flatten(0, 1))
        features: Tensor = getattr(self.encoder(pixel_values=pixels_FCHW), self._feature)
        return features.view(batch, frames, -1)


class Pictures:
    """What preprocessor_config.json says, as arithmetic on tensors."""

    def __init__(self, folder: Path, config: Mapping[str, Json]) -> None:
        if off := [name for name in ("do_resize", "do_rescale", "do_normalize") if config.get(name) is False]:
            raise UserError(f"{folder}/preprocessor_config.json sets {off[0]} to false, and pictures are always "
                            "resized, rescaled and normalised here; use another encoder")  # fmt: skip
        try:
            size = config["size"]
            size = {"shortest_edge": size} if isinstance(size, int) else size
            self.short = int(size["shortest_edge"]) if "shortest_edge" in size else None
            self.exact = None if self.short else (int(size["height"]), int(size["width"]))
            crop = config.get("crop_size") if config.get("do_center_crop") else None
            crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
            self.crop = None if crop is None else (int(crop["height"]), int(crop["width"]))
            self.mean, self.std = (tuple(map(float, config[name])) for name in ("image_mean", "image_std"))
            self.scale = float(config.get("rescale_factor", 1 / 255))
            self.mode = {2: "bilinear", 3: "bicubic"}[int(config.get("resample", 3))]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{folder}/preprocessor_config.json does not say how images are preprocessed ({error!r}); expected "
                "size, image_mean, image_std and a resample of 2 (bilinear) or 3 (bicubic)"
            ) from error

    def preprocess(self, frames_FCHW: Tensor) -> Tensor:
        """Float pictures of the encoder's size."""
        frames_FCHW = self._resize(frames_FCHW)
        if self.crop is not None:  # the middle, with black around it where the picture is smaller
            height, width = self.crop
            above, left = max(0, height - frames_FCHW.shape[-2]), max(0, width - frames_FCHW.shape[-1])
            if above or left:
                room = ((left + 1) // 2, left // 2, (above + 1) // 2, above // 2)
                frames_FCHW = nn.functional.pad(frames_FCHW, room)
            top, first = (frames_FCHW.shape[-2] - height) // 2, (frames_FCHW.shape[-1] - width) // 2
            frames_FCHW = frames_FCHW[..., top : top + height, first : first + width]
        shape = (1, -1, 1, 1)
        mean, std = (torch.tensor(values, device=frames_FCHW.device).view(shape) for values in (self.mean, self.std))
        return (frames_FCHW.float() * self.scale - mean) / std

    def _resize(self, frames_FCHW: Tensor) -> Tensor:
        height, width = frames_FCHW.shape[-2:]
        if self.exact is not None:
            size = self.exact
        else:
            assert self.short is not None
            long = int(self.short * max(height, width) / min(height, width))
            size = (self.short, long) if height <= width else (long, self.short)
        if size == (height, width):
            return frames_FCHW
        if frames_FCHW.device.type == "cpu":
            # Pillow gives the bytes of transformers' own processors, to the last.
            import numpy as np
            from PIL import Image

            way = Image.Resampling.BICUBIC if self.mode == "bicubic" else Image.Resampling.BILINEAR
            pictures = (Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy()) for frame in frames_FCHW)
            resized = [np.asarray(picture.resize((size[1], size[0]), way)) for picture in pictures]
            return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2)
        # The same arithmetic without rounding between the axes: a byte in some hundreds differs by one.
        floats = nn.functional.interpolate(
            frames_FCHW.float(), size=size, mode=self.mode, antialias=True, align_corners=False
        )
        return floats.round().clamp(0, 255)


def read_config(folder: Path, name: str) -> dict[str, Json]:
    """A JSON mapping of a model's folder."""
    try:
        content = json.loads((folder / name).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{folder / name} cannot be read ({error}); give the folder of a model as Hugging Face lays it out"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{folder / name} holds no mapping; give the folder of a model as Hugging Face lays it out")
    return content


def load_encoder(folder: Path, name: str) -> nn.Module:
    """The encoder with its weights; on the meta device, where models are only measured, without."""
    transformers = require("transformers", purpose="An image encoder from a folder")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        vision = getattr(config, "vision_config", config)
        if vision is not config and hasattr(config, "projection_dim"):
            vision.projection_dim = config.projection_dim  # the part's own value is a default that nobody kept up
    except Exception as error:  # of any kind, by what is wrong in it
        raise UserError(f"{folder / 'config.json'} is not one that transformers can read: {error}") from error
    kind = getattr(transformers, name)
    if torch.get_default_device().type == "meta":
        measured: nn.Module = kind(vision)
        return measured
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder} holds no .safetensors; other weight formats are not read, as they can run code")
    try:
        model, report = kind.from_pretrained(
            folder, config=vision, local_files_only=True, use_safetensors=True, trust_remote_code=False,
            output_loading_info=True, dtype=torch.float32,
        )  # fmt: skip
    except Exception as error:  # a damaged file is an error of safetensors' own making, others are of any kind
        raise DataError(f"the weights in {folder} are not those of its config.json: {error}") from error
    # All weights of the model and none besides, its text half apart.
    left = _TEXT_PARTS if "Projection" in name else (*_TEXT_PARTS, "visual_projection.")
    extra = [key for key in report["unexpected_keys"] if not key.startswith(left) and "position_ids" not in key]
    problems = {"lacking": report["missing_keys"], "unknown": extra, "of another shape": report["mismatched_keys"]}
    sentences = [
        f"{len(keys)} {what} ({', '.join(str(key) for key in sorted(keys, key=str)[:_SHOWN])})"
        for what, keys in problems.items()
        if keys
    ]
    if sentences:
        raise DataError(f"the weights in {folder} are not those of its config.json: {'; '.join(sentences)}")
    assert isinstance(model, nn.Module)
    return model
