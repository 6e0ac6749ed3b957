"""Builds the network that a folder of diffusers describes, loads its weights, and tells a pipeline's family."""

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.component import component
from nemo_vfm.core.types.encoders import Family
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.video import wan_family
from nemo_vfm.models.convert.video.other_library import require_read
from nemo_vfm.models.convert.video.transformer_folder import (
    FAMILIES,
    SECOND,
    TRANSFORMER,
    TransformerFolder,
    transformer_in,
)
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.noise_experts import NoiseExperts
from nemo_vfm.models.pretrained import PIPELINE, read_mapping
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill

_DESCRIPTION = "a pretrained video model"
#: Families with a network for high noise levels, `transformer`, and one for low ones, `transformer_2`.
TWO_NETWORKS = ("wan22_t2v", "wan22_i2v")
_SCHEDULER = "scheduler/scheduler_config.json"


@component
def pretrained_video_model(*, folder: Path) -> DiT:
    """The network of a folder, with the weights that the seed gives it; `start_from` or `checkpoint` bring the others.

    Args:
        folder: of a pipeline of diffusers (Cosmos, Wan), or of its transformer. Of a pipeline with two, name the
            folder of the one you mean.
    """
    config = read_mapping(_transformer(local(folder, _DESCRIPTION)) / "config.json")
    family = FAMILIES[str(config["_class_name"])]
    return family.kind(**family.arguments_of(config))


@component
def pretrained_experts(*, folder: Path) -> NoiseExperts:
    """Both networks of a pipeline that has one for high and one for low noise levels: Wan 2.2 A14B.

    Args:
        folder: of the pipeline.
    """
    first, second = _both(local(folder, _DESCRIPTION))
    high, low = (pretrained_video_model(folder=one) for one in (first, second))
    return NoiseExperts(high=high, low=low, boundary=boundary_in(folder))


def boundary_in(folder: Path) -> float:
    """Return the noise level where the two networks of a pipeline meet."""
    boundary = read_mapping(folder / PIPELINE).get("boundary_ratio")
    if not isinstance(boundary, float) or not 0 <= boundary <= 1:
        raise DataError(f"{folder.name}/{PIPELINE} says boundary_ratio: {str(boundary)[:40]}; expected a number from 0 "
                        f"to 1")  # fmt: skip
    return boundary


def load_pretrained(model: nn.Module, folder: Path) -> None:
    """Put the weights of a folder into a network."""
    if isinstance(model, NoiseExperts):
        for network, part in zip((model.high, model.low), _both(folder), strict=True):
            load_pretrained(network, part)
        return
    with TransformerFolder(folder) as weights:
        weights.require_same_function(model)
        fill(model.state_dict(), weights)


def _transformer(folder: Path) -> Path:
    found = transformer_in(folder)
    if found is None:
        require_read(folder)
        raise UserError(f"{folder} holds no video model that is read: it is not a folder of diffusers with a "
                        f"transformer of {' or '.join(FAMILIES)}")  # fmt: skip
    return found


def _both(folder: Path) -> tuple[Path, Path]:
    index = read_mapping(folder / PIPELINE) if (folder / PIPELINE).is_file() else {}
    if not isinstance(index.get(SECOND), list) or not (folder / SECOND).is_dir():
        raise UserError(
            f"{folder} is not a pipeline of two networks: it has no {SECOND}; take its one by model=pretrained"
        )
    return _transformer(folder / TRANSFORMER), _transformer(folder / SECOND)


def family_in(folder: Path) -> Family | None:
    """Return the family that a folder's transformer and index describe; None if it has no transformer that is read."""
    if (transformer := transformer_in(folder)) is None:
        return None
    config = read_mapping(transformer / "config.json")
    index = read_mapping(folder / PIPELINE) if (folder / PIPELINE).is_file() else {}
    has_more_inputs = config.get("in_channels", 16) != config.get("out_channels", 16)  # which mark given frames
    if config["_class_name"] != wan_family.CLASS:
        if config.get("use_crossattn_projection"):
            return "cosmos25"
        if config.get("extra_pos_embed_type", "learnable") is None:
            return "cosmos2_video" if has_more_inputs else "cosmos2_image"
        return "cosmos1_video" if has_more_inputs else "cosmos1_text"
    if index.get("expand_timesteps"):
        return "wan22_ti2v"
    # Wan 2.2 gives the network no image tokens.
    if index.get("boundary_ratio") is not None or (has_more_inputs and config.get("image_dim") is None):
        return "wan22_i2v" if has_more_inputs else "wan22_t2v"
    return "wan21_i2v" if has_more_inputs else "wan21_t2v"


def scheduler_in(folder: Path) -> Mapping[str, Json]:
    """Return the content of scheduler_config.json; empty if there is none."""
    path = folder / _SCHEDULER
    return read_mapping(path) if path.is_file() else {}
