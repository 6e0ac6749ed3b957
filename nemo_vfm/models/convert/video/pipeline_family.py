"""Reads which family of video models a diffusers pipeline folder holds, and with which scheduler it samples."""

from collections.abc import Mapping
from pathlib import Path

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.video import wan_family
from nemo_vfm.models.convert.video.random_pipeline import Family
from nemo_vfm.models.convert.video.transformer_folder import PIPELINE, transformer_in
from nemo_vfm.models.pretrained import read_mapping

#: Families with a network for high noise levels, `transformer`, and one for low ones, `transformer_2`.
TWO_NETWORKS = ("wan22_t2v", "wan22_i2v")
_SCHEDULER = "scheduler/scheduler_config.json"


def family_in(folder: Path) -> Family | None:
    """Return the family that a folder's transformer and index describe; None if it has no transformer that is read.

    Raises:
        DataError: a file is damaged.
    """
    if (transformer := transformer_in(folder)) is None:
        return None
    config = read_mapping(transformer / "config.json")
    index = read_mapping(folder / PIPELINE) if (folder / PIPELINE).is_file() else {}
    return _wan(config, index) if config["_class_name"] == wan_family.CLASS else _cosmos(config)


def scheduler_in(folder: Path) -> Mapping[str, Json]:
    """Return the content of scheduler_config.json; empty if there is none.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / _SCHEDULER
    return read_mapping(path) if path.is_file() else {}


def _wan(config: Mapping[str, Json], index: Mapping[str, Json]) -> Family:
    is_image = config.get("in_channels", 16) != config.get("out_channels", 16)
    if index.get("expand_timesteps"):
        return "wan22_ti2v"
    # Wan 2.2 gives the network no image tokens.
    if index.get("boundary_ratio") is not None or (is_image and config.get("image_dim") is None):
        return "wan22_i2v" if is_image else "wan22_t2v"
    return "wan21_i2v" if is_image else "wan21_t2v"


def _cosmos(config: Mapping[str, Json]) -> Family:
    if config.get("use_crossattn_projection"):
        return "cosmos25"
    has_mask = config.get("in_channels", 16) != config.get("out_channels", 16)  # a channel that marks given frames
    if config.get("extra_pos_embed_type", "learnable") is None:
        return "cosmos2_video" if has_mask else "cosmos2_image"
    return "cosmos1_video" if has_mask else "cosmos1_text"
