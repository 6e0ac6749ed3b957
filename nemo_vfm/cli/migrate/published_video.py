"""Writes a published Wan or Cosmos as ours: the network and parts of its folder, its weights, its adapters."""

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from nemo_vfm.cli.migrate.adapters import adapters, has_adapters, put_folder
from nemo_vfm.cli.migrate.draft import RecipeDraft
from nemo_vfm.cli.migrate.foreign_yaml import Value
from nemo_vfm.config import read_values
from nemo_vfm.config.roots import shipped_folder
from nemo_vfm.models.convert.video.transformer_folder import FAMILIES

#: Names of what is no network of ours, although it is called Wan or Cosmos.
_OTHERS = re.compile(r"vace|animate|s2v|fun-|flf2v|transfer|tokenizer|reason|embed", re.IGNORECASE)
_WAN = r"(?:^|[/_-])wan[-_]?"
#: What a name holds -> file of conf/pipeline; the first that fits counts.
_PIPELINES = {
    rf"{_WAN}2[._]?2.*ti2v": "wan22_ti2v", rf"{_WAN}2[._]?2.*i2v": "wan22_i2v", rf"{_WAN}2[._]?2": "wan22_t2v",
    rf"{_WAN}.*i2v": "wan21_i2v", rf"{_WAN}(?=[\d._-]|$)": "wan21_t2v",
    r"cosmos.*predict2[._]5": "cosmos25", r"cosmos.*predict2.*image": "cosmos2_image",
    r"cosmos.*predict2": "cosmos2_video", r"cosmos.*video2world": "cosmos1_video", r"cosmos.*text2world":
    "cosmos1_text",
}  # fmt: skip
#: Where the two networks of Wan 2.2 A14B meet, as its folders say.
_BOUNDARIES = {"wan22_t2v": 0.875, "wan22_i2v": 0.9}
#: What makes noise levels of a part of the path others than theirs.
REDRAWN = "noise levels outside the trained range are drawn again; the original clamps them"
_STAGES = {"high_noise": "transformer", "low_noise": "transformer_2"}


def pipeline_of(draft: RecipeDraft) -> str:
    """The pipeline of ours that a checkpoint's name stands for; empty where it is none."""
    for fact in ("pretrained", "adapter"):
        name = str(draft.get(fact))
        if _OTHERS.search(name):
            return ""
        if found := next((ours for like, ours in _PIPELINES.items() if re.search(like, name, re.IGNORECASE)), ""):
            return found
    return ""


def published_video(draft: RecipeDraft, pipeline: str) -> None:
    """The network, its weights, and what prepares its inputs."""
    draft.choices["model"] = "pretrained"
    put_folder(draft, "of diffusers")
    network = _stage(draft, pipeline)
    if network:
        draft.put("model.folder", f"${{base}}/{network}")
    if draft.get("mode") == "pretrain" and not has_adapters(draft):
        draft.agree("mode", "weights.start_from", "without it the model begins with random weights, as in the original")
    else:
        draft.put("weights.start_from", f"${{base}}/{network}" if network else "${base}")
        draft.agree("mode", "weights.start_from")
    file = shipped_folder("conf") / "pipeline" / f"{pipeline}.yaml"
    parts: dict[str, Any] = read_values(file.read_text(encoding="utf-8"), str(file))
    for name in ("codec", "text_encoder", "objective", "frame_conditioning"):
        for address, value in _flat(f"task.{name}", parts[name]):
            draft.put(address, value)
    _frames(draft, pipeline)
    # A small network of one block tells where its linears are in diffusers.
    kind = "CosmosTransformer3DModel" if pipeline.startswith("cosmos") else "WanTransformer3DModel"
    small = {"num_attention_heads": 1, "attention_head_dim": 24, "num_layers": 1, "in_channels": 4, "out_channels": 4}
    image = {"image_dim": 24, "added_kv_proj_dim": 24} if pipeline == "wan21_i2v" else {}
    family = FAMILIES[kind]
    with torch.device("meta"):
        model = family.kind(**family.arguments_of({"_class_name": kind, **small, **image}))
    there = family.tensors_of(model)
    named = {name: there[f"{name}.weight"].names for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    if kind.startswith("Wan"):
        del named["patch_embedding.proj"]  # a convolution there
    linears = {ours: tuple(one.removesuffix(".weight") for one in theirs) for ours, theirs in named.items()}
    adapters(draft, model, linears)
    for fact in ("width", "depth", "heads", "ffn", "patch", "in_channels", "text_dim", "codec", "text_encoder"):
        draft.leave(fact, "the folder's config.json says it")
    draft.agree("model_builder", "weights.start_from")
    draft.leave("model_class", "the folder's config.json says which network it is")
    draft.leave("adapter", "the task prepares the inputs of each network; there is nothing to choose")
    draft.leave("seq_length", "the number of tokens follows from the bucket and the patches")


def _stage(draft: RecipeDraft, pipeline: str) -> str:
    """Which of two networks is trained, and the noise levels that it sees."""
    stage = str(draft.get("stage")).lower()
    if stage not in _STAGES or not pipeline.startswith("wan"):
        draft.leave(
            "stage", "it must be high_noise or low_noise, of Wan; otherwise the folder's first network is trained"
        )
        draft.leave("boundary", "it has no effect without a stage")
        return ""
    draft.agree("stage", "model.folder", f"the network of these noise levels, {_STAGES[stage]}")
    draft.differ(REDRAWN)
    boundary = draft.number("boundary")
    if boundary is not None and boundary < 1:
        draft.agree("boundary", "task.objective.drawn")
    else:
        boundary = _BOUNDARIES.get(pipeline)
        draft.leave("boundary", "it is not a number between 0 and 1; the published pipeline's is used")
    ends = (boundary, 1.0) if stage == "high_noise" else (0.0, boundary)
    draft.put("task.objective.drawn", ends if boundary else "???", "the noise levels of this network")
    for fact in ("sigma_min", "sigma_max"):
        draft.leave(fact, "the stage sets it in the original")
    return _STAGES[stage]


def _flat(address: str, value: Any) -> Iterator[tuple[str, Value]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flat(f"{address}.{key}", below)
    else:
        yield address, tuple(value) if isinstance(value, list) else value


def _frames(draft: RecipeDraft, pipeline: str) -> None:
    """Their Wan is trained from text alone, whatever `i2v_prob` says, unless its network takes frames."""
    share = draft.real("image_share")
    takes = pipeline.endswith(("i2v", "video", "cosmos25")) and pipeline != "wan22_ti2v"
    if not takes:
        for address in [key for key in draft.values if key.startswith("task.frame_conditioning")]:
            del draft.values[address]
    if share is None or not 0 <= share <= 1:
        draft.leave("image_share", "it is not a fraction between 0 and 1")
    elif takes:
        why = "the fraction of samples without given frames"
        draft.change("image_share", "task.frame_conditioning.none_given", round(1 - share, 6), why)
    elif share == 0:
        draft.agree("image_share", "task.frame_conditioning", "no frames are given")
    else:
        draft.leave("image_share", "their adapter for this network does not read it, so training is from text alone")
