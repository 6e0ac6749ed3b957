"""Gives tensors of diffusers the names that they have in files of NVIDIA's and Wan's own programs.

Both hold the same numbers in the same shapes: the names alone differ. NeMo joins some tensors (`nemo_maps`).
"""

import re
from collections.abc import Collection, Mapping
from typing import Final, Literal

#: Cosmos 1; Cosmos-Predict2 and 2.5; Cosmos 1 of NeMo.
Version = Literal["1", "2", "nemo"]
#: Inside a block of Wan: diffusers -> native.
WAN_BLOCK: Final[dict[str, str]] = {
    **{f"attn1.to_{x}": f"self_attn.{x}" for x in "qkv"}, "attn1.to_out.0": "self_attn.o",
    **{f"attn2.to_{x}": f"cross_attn.{x}" for x in "qkv"}, "attn2.to_out.0": "cross_attn.o",
    "attn2.add_k_proj": "cross_attn.k_img", "attn2.add_v_proj": "cross_attn.v_img",
    "ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2",
    **{f"attn1.norm_{x}": f"self_attn.norm_{x}" for x in "qk"},
    **{f"attn2.norm_{x}": f"cross_attn.norm_{x}" for x in "qk"}, "attn2.norm_added_k": "cross_attn.norm_k_img",
    "norm2": "norm3",
}  # fmt: skip
WAN_OUTSIDE: Final[dict[str, str]] = {
    "patch_embedding": "patch_embedding",
    "proj_out": "head.head",
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.image_embedder.norm1": "img_emb.proj.0",
    "condition_embedder.image_embedder.ff.net.0.proj": "img_emb.proj.1",
    "condition_embedder.image_embedder.ff.net.2": "img_emb.proj.3",
    "condition_embedder.image_embedder.norm2": "img_emb.proj.4",
}
#: Wan: diffusers -> native, of parameters that are no weight and no bias.
_WAN_TABLES = {
    "scale_shift_table": "head.modulation", "condition_embedder.image_embedder.pos_embed": "img_emb.emb_pos",
}  # fmt: skip
#: Inside a block of Cosmos-Predict2 and 2.5: diffusers -> native.
COSMOS_2_BLOCK: Final[dict[str, str]] = {
    **{f"attn{n}.to_{x}": f"{kind}_attn.{x}_proj" for n, kind in ((1, "self"), (2, "cross")) for x in "qkv"},
    "attn1.to_out.0": "self_attn.output_proj", "attn2.to_out.0": "cross_attn.output_proj",
    "ff.net.0.proj": "mlp.layer1", "ff.net.2": "mlp.layer2",
    **{
        f"norm{n}.linear_{k}": f"adaln_modulation_{kind}.{k}"
        for n, kind in ((1, "self_attn"), (2, "cross_attn"), (3, "mlp")) for k in (1, 2)
    },
    **{f"attn{n}.norm_{x}": f"{kind}_attn.{x}_norm" for n, kind in ((1, "self"), (2, "cross")) for x in "qk"},
}  # fmt: skip
#: A block of Cosmos 1 is three: self-attention, cross-attention, perceptron. A projection and its norm are a pair.
_COSMOS_1_BLOCK = {
    **{f"attn{n + 1}.to_{x}": f"blocks.{n}.block.attn.to_{x}.0" for n in (0, 1) for x in "qkv"},
    **{f"attn{n + 1}.norm_{x}": f"blocks.{n}.block.attn.to_{x}.1" for n in (0, 1) for x in "qk"},
    **{f"attn{n + 1}.to_out.0": f"blocks.{n}.block.attn.to_out.0" for n in (0, 1)},
    "ff.net.0.proj": "blocks.2.block.layer1", "ff.net.2": "blocks.2.block.layer2",
    **{f"norm{n + 1}.linear_{k}": f"blocks.{n}.adaLN_modulation.{k}" for n in (0, 1, 2) for k in (1, 2)},
}  # fmt: skip
#: A block of Cosmos 1 of NeMo: what its sizes follow from. Of `attn2.to_k`, the columns alone.
_NEMO_BLOCK = {
    "attn1.norm_q": "full_self_attention.q_layernorm", "attn2.to_k": "cross_attention.linear_kv",
    "ff.net.0.proj": "mlp.linear_fc1",
}  # fmt: skip
_BOTH = {
    "patch_embed.proj": "x_embedder.proj.1", "proj_out": "final_layer.linear",
    **{f"time_embed.t_embedder.linear_{n}": f"t_embedder.1.linear_{n}" for n in (1, 2)},
}  # fmt: skip
_OUTSIDE_1 = _BOTH | {
    "time_embed.norm": "affline_norm",  # so written there
    **{f"norm_out.linear_{n}": f"final_layer.adaLN_modulation.{n}" for n in (1, 2)},
    **{f"learnable_pos_embed.pos_emb_{x}": f"extra_pos_embedder.pos_emb_{x}" for x in "thw"},
}  # fmt: skip
COSMOS_2_OUTSIDE: Final[dict[str, str]] = _BOTH | {
    "time_embed.norm": "t_embedding_norm", "crossattn_proj.0": "crossattn_proj.0",
    **{f"norm_out.linear_{n}": f"final_layer.adaln_modulation.{n}" for n in (1, 2)},
}  # fmt: skip
_OUTSIDE: Final[Mapping[Version, Mapping[str, str]]] = {
    "1": _OUTSIDE_1, "2": COSMOS_2_OUTSIDE, "nemo": _OUTSIDE_1,
}  # fmt: skip
_INSIDE: Final[Mapping[Version, Mapping[str, str]]] = {
    "1": _COSMOS_1_BLOCK, "2": COSMOS_2_BLOCK, "nemo": _NEMO_BLOCK,
}  # fmt: skip
_BLOCKS: Final[Mapping[Version, str]] = {"1": "blocks.block", "2": "blocks.", "nemo": "decoder.layers."}
_BLOCK = re.compile(r"transformer_blocks\.(\d+)\.(.+)")
#: What the programs keep beside the weights, and what no output depends on: counters, tables that are computed here,
#: Transformer Engine's scales, and the training's uncertainty head.
_LEFT = re.compile(r"(.*\.)?_extra_state|accum_\w+|pos_embedder\.(seq|dim_spatial_range|dim_temporal_range)|logvar\..+")
#: Only a Cosmos of NeMo has modulations of two matrices; its layers are stacked or numbered.
_FIRST: Final[Mapping[str, Version]] = {
    "blocks.block0.blocks.0.block.attn.to_q.0.weight": "1", "blocks.0.self_attn.q_proj.weight": "2",
    "decoder.layers.adaLN.adaLN_modulation.2.weight": "nemo",
    "decoder.layers.0.adaLN.adaLN_modulation.2.weight": "nemo",
}  # fmt: skip


def native_name(version: Version, name: str) -> str:
    """The name that NVIDIA's programs have for a tensor of diffusers' Cosmos."""
    stem, kind = (name, "") if "pos_emb_" in name else (name.rpartition(".")[0], f".{name.rpartition('.')[2]}")
    match = _BLOCK.fullmatch(stem)
    if match is None:
        return f"{_OUTSIDE[version][stem]}{kind}"
    return f"{_BLOCKS[version]}{match[1]}.{_INSIDE[version][match[2]]}{kind}"


def wan_name(name: str) -> str:
    """The name that Wan's own programs have for a tensor of diffusers' Wan."""
    if name in _WAN_TABLES:
        return _WAN_TABLES[name]
    stem, _, kind = name.rpartition(".")
    if not name.startswith("blocks."):
        return f"{WAN_OUTSIDE[stem]}.{kind}"
    if kind == "scale_shift_table":
        return f"{stem}.modulation"
    _, number, inside = stem.split(".", 2)
    return f"blocks.{number}.{WAN_BLOCK[inside]}.{kind}"


def is_left_out(name: str) -> bool:
    """Whether a tensor, by its native name, is not part of the network that is computed."""
    return _LEFT.fullmatch(name) is not None


def prefixes_of(names: Collection[str]) -> dict[str, Version]:
    """What stands before the names of each network of Cosmos in a file, such as "net." and "net_ema."."""
    found: dict[str, Version] = {}
    weights = [name for name in names if not name.startswith("optim")]
    for first, version in _FIRST.items():
        found |= {name.removesuffix(first): version for name in weights if name == first or name.endswith(f".{first}")}
    return found
