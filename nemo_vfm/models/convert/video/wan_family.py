"""Maps Wan 2.1 and 2.2 of diffusers (WanTransformer3DModel) to Wan's arguments and weights, and back."""

from collections.abc import Mapping
from typing import Any

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.language.config_keys import int_at, numbers, optional_whole, refusal, require_known
from nemo_vfm.models.convert.tensor_map import TensorMap, alias, by_head, patch_rows, reshape_map, rotary_halves_map
from nemo_vfm.models.wan import Wan
from nemo_vfm.parallel.plan.adapter_split import is_adapter

CLASS = "WanTransformer3DModel"
_MOST = 1 << 20
_FIXED: dict[str, Json] = {"cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "eps": 1e-6}
_IGNORED = frozenset({"rope_max_seq_len"})  # the length of a table that is computed here
_READ = frozenset({
    "patch_size", "num_attention_heads", "attention_head_dim", "in_channels", "out_channels", "text_dim", "freq_dim",
    "ffn_dim", "num_layers", "image_dim", "added_kv_proj_dim", "pos_embed_seq_len",
})  # fmt: skip
_EMBEDDER = "condition_embedder"
_LINEARS = {
    "noise_embedding.up": f"{_EMBEDDER}.time_embedder.linear_1",
    "noise_embedding.down": f"{_EMBEDDER}.time_embedder.linear_2",
    "shared_modulation.proj": f"{_EMBEDDER}.time_proj",
    "text_projection.up": f"{_EMBEDDER}.text_embedder.linear_1",
    "text_projection.down": f"{_EMBEDDER}.text_embedder.linear_2",
    "image_embedding.in_norm": f"{_EMBEDDER}.image_embedder.norm1",
    "image_embedding.up": f"{_EMBEDDER}.image_embedder.ff.net.0.proj",
    "image_embedding.down": f"{_EMBEDDER}.image_embedder.ff.net.2",
    "image_embedding.out_norm": f"{_EMBEDDER}.image_embedder.norm2",
}
_INSIDE = {
    "self_attention.out": "attn1.to_out.0", "text_norm": "norm2", "cross_attention.q": "attn2.to_q",
    "cross_attention.out": "attn2.to_out.0", "mlp.up": "ffn.net.0.proj", "mlp.down": "ffn.net.2",
}  # fmt: skip
_NORMS = {"q_norm": "norm_q", "k_norm": "norm_k", "image_k_norm": "norm_added_k"}


def arguments_of(config: Mapping[str, Json]) -> dict[str, Any]:
    """Wan's arguments from config.json, missing keys as diffusers has them."""
    require_known(config, _READ | _IGNORED, _FIXED)
    given: dict[str, Json] = {
        "patch_size": [1, 2, 2], "num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 16,
        "out_channels": 16, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 13824, "num_layers": 40,
    } | dict(config)  # fmt: skip
    heads, head_dim = (int_at(given, key, _MOST) for key in ("num_attention_heads", "attention_head_dim"))
    inputs = int_at(given, "in_channels", _MOST)
    outputs = inputs if given["out_channels"] is None else int_at(given, "out_channels", _MOST)
    if inputs < outputs:
        raise refusal("in_channels", inputs, f"at least out_channels, {outputs}: latents, then the given ones")
    frequencies = int_at(given, "freq_dim", _MOST)
    if frequencies % 2:
        raise refusal("freq_dim", frequencies, "even: as many sines as cosines")
    width = heads * head_dim
    image, added = (optional_whole(given, key) for key in ("image_dim", "added_kv_proj_dim"))
    if added != (None if image is None else width):
        raise refusal("added_kv_proj_dim", added, f"the model's width, {width}, beside image_dim, and null without it")
    return {
        "in_channels": outputs, "text_dim": int_at(given, "text_dim", _MOST), "width": width,
        "depth": int_at(given, "num_layers", 10_000), "heads": heads, "mlp_hidden": int_at(given, "ffn_dim", _MOST),
        "patch": tuple(numbers(given, "patch_size", 3, integer=True)), "condition_channels": inputs - outputs,
        "num_frequencies": frequencies // 2, "image_dim": image,
        "image_positions": optional_whole(given, "pos_embed_seq_len"),
    }  # fmt: skip


def config_of(model: Wan) -> dict[str, Json]:
    """The config.json of a model."""
    if model.noise_scale != 1000 or model.rope.theta != 10_000:
        raise DataError(f"diffusers has no Wan with noise_scale {model.noise_scale:g} and rope_theta "
                        f"{model.rope.theta:g}; it has 1000 and 10000")  # fmt: skip
    return {
        "_class_name": CLASS, "patch_size": list(model.patch), "num_attention_heads": model.heads,
        "attention_head_dim": model.width // model.heads, "in_channels": model.in_channels + model.condition_channels,
        "out_channels": model.in_channels, "text_dim": model.text_dim, "freq_dim": 2 * model.num_frequencies,
        "ffn_dim": model.mlp_hidden, "num_layers": model.depth, **_FIXED, "image_dim": model.image_dim,
        "added_kv_proj_dim": model.width if model.image_dim else None, "rope_max_seq_len": 1024,
        "pos_embed_seq_len": model.image_positions,
    }  # fmt: skip


def tensors_of(model: Wan) -> dict[str, TensorMap]:
    """Where each parameter is in diffusers."""
    width, inputs = model.width, model.in_channels + model.condition_channels
    there = _both(_LINEARS)
    there |= {
        "patch_embedding.proj.weight": reshape_map(
            "patch_embedding.weight", (width, -1), (width, inputs, *model.patch)
        ),
        "patch_embedding.proj.bias": alias("patch_embedding.bias"),
        "modulation.table": reshape_map("scale_shift_table", (2, width), (1, 2, width)),
        **{f"out.{kind}": patch_rows(f"proj_out.{kind}", model.patch, "thw") for kind in ("weight", "bias")},
    }
    if model.image_positions:
        there["image_embedding.positions"] = reshape_map(
            f"{_EMBEDDER}.image_embedder.pos_embed", (model.image_positions, -1), (1, model.image_positions, -1)
        )
    for number in range(model.depth):
        block, head_dim = f"blocks.{number}", model.rope.head_dim
        there |= _both({f"{block}.{ours}": f"{block}.{theirs}" for ours, theirs in _INSIDE.items()})
        there[f"{block}.modulation.table"] = reshape_map(f"{block}.scale_shift_table", (6, width), (1, 6, width))
        for ours, theirs in _NORMS.items():  # positions turn the queries and keys of self-attention alone
            there[f"{block}.self_attention.{ours}.weight"] = rotary_halves_map(
                f"{block}.attn1.{theirs}.weight", head_dim
            )
            there[f"{block}.cross_attention.{ours}.weight"] = alias(f"{block}.attn2.{theirs}.weight")
        for kind in ("weight", "bias"):
            q, k, v = (f"{block}.attn1.to_{x}.{kind}" for x in "qkv")
            there[f"{block}.self_attention.qkv.{kind}"] = by_head((q, k, v), head_dim, (0, 1))
            for ours, names in (("kv", ("to_k", "to_v")), ("image_kv", ("add_k_proj", "add_v_proj"))):
                targets = [f"{block}.attn2.{name}.{kind}" for name in names]
                there[f"{block}.cross_attention.{ours}.{kind}"] = by_head(targets, head_dim)
    return {name: there[name] for name, _ in model.named_parameters() if not is_adapter(name)}


def _both(modules: Mapping[str, str]) -> dict[str, TensorMap]:
    """The weight and the bias of each."""
    return {
        f"{ours}.{kind}": alias(f"{theirs}.{kind}") for ours, theirs in modules.items() for kind in ("weight", "bias")
    }
