"""Encodes pixels to latents and decodes them with Wan's or Cosmos' autoencoder from a local diffusers folder.

Shape letters: B batch, C channels, T frames, H height, W width.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.optional import needs_gpu, needs_packages, require
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.held_weights import HeldWeights
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.codec import latent_sides
from nemo_vfm.models.pretrained import checked_folder, fingerprint_of, read_mapping
from nemo_vfm.parallel.plan.static_memory import on_meta

#: Class -> keys of config.json for the latent channels, temporal stride and spatial stride.
KINDS = {
    "AutoencoderKLWan": ("z_dim", "scale_factor_temporal", "scale_factor_spatial"),
    "AutoencoderKLCosmos": ("latent_channels", "temporal_compression_ratio", "spatial_compression_ratio"),
}
_DESCRIPTION = "the autoencoder of a pipeline"
#: Models by fingerprint, loaded once per process, since codecs are sent between processes and hold only settings.
#: diffusers' autoencoders cache features of earlier frames, so only one thread may use one at a time.
_LOADED: dict[str, Any] = {}
_LOCK = Lock()


@dataclass(frozen=True, slots=True)
class AutoencoderConfig:
    """What an autoencoder's config.json says."""

    kind: str  #: the name of its class in diffusers
    channels: int  #: latent channels
    temporal_stride: int  #: frames per latent frame; the first frame is a latent frame by itself
    spatial_stride: int  #: pixels per latent along a side
    #: latent means per channel, or per channel and latent frame with channels slowest; empty is 0
    mean: tuple[float, ...]
    std: tuple[float, ...]  #: latent standard deviations, in the same order; empty is 1


@needs_gpu()
@needs_packages("diffusers")
class DiffusersCodec:
    """A codec whose latents have the scale that diffusers' pipelines feed to the network.

    A latent is scale (mode - mean) / std, with the mean and std of config.json.

    Args:
        folder: folder of the autoencoder, or of a pipeline with one in `vae`; holds config.json and safetensors.
        scale: factor of the latents: the objective's sigma_data, which is 0.5 for Cosmos 1.0 and 1 otherwise.
        tile: side of the tiles that frames are processed in, in pixels: a multiple of four latents (32 pixels for Wan
            2.1). Tiles overlap by a quarter and are blended. This bounds memory for large frames and changes latents
            and pixels near the seams. None processes whole frames.
        precision: precision of weights and arithmetic: auto, bf16 or fp32.
    """

    def __init__(
        self, *, folder: Path, scale: float = 1.0, tile: int | None = None, precision: PrecisionName = "fp32"
    ) -> None:
        if not scale > 0 or not isfinite(scale):
            raise ValueError(f"scale must be above 0, got {scale}; 1 leaves latents unscaled")
        if tile is not None and tile < 1:
            raise ValueError(f"tile must be at least 1 pixel, got {tile}; null processes whole frames")
        self.folder, self.scale, self.tile, self.precision = local(folder, _DESCRIPTION), scale, tile, precision

    @torch.no_grad()
    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Pixels in [-1, 1] to latents, fp32."""
        self.latent_shape(*video_BCTHW.shape[2:])
        with _LOCK:
            model = self._model_on(video_BCTHW.device)
            latents: Tensor = model.encode(video_BCTHW.to(model.dtype)).latent_dist.mode().float()
        mean, std = self._statistics(latents)
        return self.scale * (latents - mean) / std

    @torch.no_grad()
    def decode(self, latents_BCTHW: Tensor) -> Tensor:
        """Latents to pixels, fp32."""
        mean, std = self._statistics(latents_BCTHW)
        with _LOCK:
            model = self._model_on(latents_BCTHW.device)
            pixels: Tensor = model.decode((latents_BCTHW.float() / self.scale * std + mean).to(model.dtype)).sample
        return pixels.float()

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """The latent shape (C', T', H', W'), without reading weights; ValueError if the size does not fit."""
        config = self.autoencoder_config()
        strides = config.temporal_stride, config.spatial_stride
        return config.channels, *latent_sides(num_frames, height, width, *strides, "this autoencoder")

    def fingerprint(self) -> str:
        """Identifies the model's bytes and settings."""
        dtype = str(Precision(self.precision).resolve()[0]).removeprefix("torch.")
        files = fingerprint_of(self._autoencoder_folder())
        return f"diffusers-codec/1 {files} scale={self.scale} tile={self.tile} {dtype}"

    def autoencoder_config(self) -> AutoencoderConfig:
        """The settings in config.json; DataError if it is of no autoencoder that is supported."""
        folder = checked_folder(self._autoencoder_folder())
        config = read_mapping(folder / "config.json")
        kind = str(config.get("_class_name") or "")
        if kind not in KINDS:
            problem = f"is of the class {kind[:60]}" if kind else "names no class of diffusers"
            raise DataError(f"{folder.name}/config.json {problem}; supported are {', '.join(KINDS)}")
        channels, temporal_stride, spatial_stride = (_count(config, key) for key in KINDS[kind])
        mean, std = _numbers(config, "latents_mean", channels), _numbers(config, "latents_std", channels)
        if len(mean) != len(std) or not all(std):
            raise DataError(f"{folder.name}/config.json has {len(mean)} latents_mean and {len(std)} "
                            f"latents_std, of which none may be 0")  # fmt: skip
        return AutoencoderConfig(kind, channels, temporal_stride, spatial_stride, mean, std)

    def _autoencoder_folder(self) -> Path:
        inner = self.folder / "vae"
        return inner if (self.folder / "model_index.json").is_file() and inner.is_dir() else self.folder

    def _statistics(self, latents_BCTHW: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation, (1, C, 1 or T, 1, 1)."""
        config, frames = self.autoencoder_config(), latents_BCTHW.shape[2]
        if not config.mean:
            return latents_BCTHW.new_zeros(1), latents_BCTHW.new_ones(1)
        known = len(config.mean) // config.channels
        if 1 < known < frames:
            raise ValueError(f"this autoencoder has means for {known} latent frames, got {frames}; use at most "
                             f"{1 + (known - 1) * config.temporal_stride} frames")  # fmt: skip
        mean, std = (
            torch.tensor(numbers, device=latents_BCTHW.device).view(1, config.channels, -1, 1, 1)[:, :, :frames]
            for numbers in (config.mean, config.std)
        )
        return mean, std

    def _model_on(self, device: torch.device) -> Any:
        key = self.fingerprint()
        if key not in _LOADED:
            _LOADED[key] = self._load()
        return _LOADED[key].to(device)

    def offload(self) -> None:
        """Move the weights to the CPU."""
        with _LOCK:
            if (model := _LOADED.get(self.fingerprint())) is not None:
                model.to("cpu")

    def held_weights(self) -> HeldWeights:
        """Bytes of the weights, counted without reading them."""
        cls = getattr(require("diffusers", purpose="an autoencoder of diffusers"), self.autoencoder_config().kind)
        folder = self._autoencoder_folder()
        config = read_mapping(folder / "config.json")
        # On a GPU, for which this counts, auto is bf16; on this machine it may be fp32.
        width = 4 if self.precision == "fp32" else 2
        try:
            count = sum(parameter.numel() for parameter in on_meta(lambda: cls.from_config(config)).parameters())
        except (ValueError, RuntimeError, TypeError) as error:
            raise DataError(f"{folder.name}/config.json describes no autoencoder: {str(error)[:300]}") from error
        return HeldWeights(f"autoencoder {folder} in {width} bytes", width * count)

    @torch.inference_mode(False)  # autograd refuses tensors that were made in it, and other callers get these, too
    def _load(self) -> Any:
        diffusers = require("diffusers", purpose="an autoencoder of diffusers")
        folder, config = self._autoencoder_folder(), self.autoencoder_config()
        cls = getattr(diffusers, config.kind)
        dtype = Precision(self.precision).resolve()[0]
        try:
            model, loading_info = cls.from_pretrained(
                folder, torch_dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            raise DataError(f"{folder.name} cannot be loaded: {str(error)[:300]}") from error
        # diffusers only warns of a missing weight, and initialises it at random.
        if wrong := [
            name for key in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in loading_info[key]
        ]:
            raise DataError(f"{folder.name} does not hold the weights that its config.json implies: "
                            f"{', '.join(map(str, sorted(wrong)[:4]))}")  # fmt: skip
        if self.tile is not None:
            step = 4 * config.spatial_stride
            if config.kind == "AutoencoderKLCosmos":
                raise ValueError("diffusers ignores tiling when it encodes with Cosmos; leave tile out")
            if self.tile % step:
                whole = max(self.tile // step, 1) * step
                raise ValueError(f"tile is {self.tile} pixels, expected a multiple of {step}: use {whole}")
            model.enable_tiling(
                tile_sample_min_height=self.tile, tile_sample_min_width=self.tile,
                tile_sample_stride_height=self.tile - self.tile // 4,
                tile_sample_stride_width=self.tile - self.tile // 4,
            )  # fmt: skip
        return model.eval().requires_grad_(False)


def _count(config: dict[str, Json], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 1 <= value <= 1 << 16:
        raise DataError(f"config.json says {key}: {str(value)[:40]}; it must be a whole number from 1 to 65,536")
    return value


def _numbers(config: dict[str, Json], key: str, channels: int) -> tuple[float, ...]:
    value = config.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not value or len(value) % channels or not all(
        type(one) in (int, float) and isfinite(one) for one in value
    ):  # fmt: skip
        raise DataError(f"config.json must have one {key} per channel ({channels}), or a multiple for several "
                        f"latent frames; it has {len(value) if isinstance(value, list) else 'none'}")  # fmt: skip
    return tuple(float(one) for one in value)
