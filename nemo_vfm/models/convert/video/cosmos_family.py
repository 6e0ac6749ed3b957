"""Maps Cosmos 1, 2 and 2.5 of diffusers (CosmosTransformer3DModel) to a DiT's arguments and weights, and back."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.language.config_keys import above_zero, flag, int_at, numbers, refusal, require_known
from nemo_vfm.models.convert.tensor_map import TensorMap, alias, by_head, patch_rows
from nemo_vfm.models.dit import DiT
from nemo_vfm.parallel.plan.adapter_split import is_adapter

CLASS = "CosmosTransformer3DModel"
_MOST = 1 << 20
_EPS = 1e-5  # of its attention's norms, which no key says; with 1e-6 outputs differ by 2e-5 of their deviation
_NO_POSITIONS = (128, 240, 240)  # what diffusers writes as max_size where nothing is learned
#: What Cosmos Transfer has besides, and the only value that is converted.
_FIXED: dict[str, Json] = {"controlnet_block_every_n": None, "img_context_dim_in": None}
_IGNORED = frozenset({"img_context_num_tokens", "img_context_dim_out"})  # they mean something beside the keys above
_READ = frozenset({
    "in_channels", "out_channels", "num_attention_heads", "attention_head_dim", "num_layers", "mlp_ratio",
    "text_embed_dim", "adaln_lora_dim", "max_size", "patch_size", "rope_scale", "concat_padding_mask",
    "extra_pos_embed_type", "use_crossattn_projection", "crossattn_proj_in_channels", "encoder_hidden_states_channels",
})  # fmt: skip
_TABLES = {"frames": "t", "rows": "h", "columns": "w"}
_OUTSIDE = {
    "patch_embedding.proj.weight": "patch_embed.proj.weight",
    "noise_embedding.norm.weight": "time_embed.norm.weight",
    "noise_embedding.hidden.weight": "time_embed.t_embedder.linear_1.weight",
    "noise_embedding.shared.weight": "time_embed.t_embedder.linear_2.weight",
    "text_projection.proj.weight": "crossattn_proj.0.weight",
    "text_projection.proj.bias": "crossattn_proj.0.bias",
    "modulation.down.0.weight": "norm_out.linear_1.weight",
    "modulation.up.0.weight": "norm_out.linear_2.weight",
}
_INSIDE = {
    "self_attention.out": "attn1.to_out.0", "self_attention.q_norm": "attn1.norm_q",
    "self_attention.k_norm": "attn1.norm_k", "cross_attention.q": "attn2.to_q",
    "cross_attention.out": "attn2.to_out.0", "cross_attention.q_norm": "attn2.norm_q",
    "cross_attention.k_norm": "attn2.norm_k", "mlp.up": "ff.net.0.proj", "mlp.down": "ff.net.2",
}  # fmt: skip


def arguments_of(config: Mapping[str, Json]) -> dict[str, Any]:
    """A DiT's arguments from config.json, missing keys as diffusers has them."""
    require_known(config, _READ | _IGNORED, _FIXED)
    given: dict[str, Json] = {
        "in_channels": 16, "out_channels": 16, "num_attention_heads": 32, "attention_head_dim": 128, "num_layers": 28,
        "mlp_ratio": 4.0, "text_embed_dim": 1024, "adaln_lora_dim": 256, "max_size": list(_NO_POSITIONS),
        "patch_size": [1, 2, 2], "rope_scale": [2.0, 1.0, 1.0], "concat_padding_mask": True,
        "extra_pos_embed_type": "learnable", "use_crossattn_projection": False, "crossattn_proj_in_channels": 1024,
        "encoder_hidden_states_channels": 1024,
    } | dict(config)  # fmt: skip
    heads, head_dim = (int_at(given, key, _MOST) for key in ("num_attention_heads", "attention_head_dim"))
    patch = numbers(given, "patch_size", 3, integer=True)
    inputs, outputs = int_at(given, "in_channels", _MOST), int_at(given, "out_channels", _MOST)
    if inputs < outputs:
        raise refusal("in_channels", inputs, f"at least out_channels, {outputs}: latents, then what marks given ones")
    if given["extra_pos_embed_type"] not in (None, "learnable"):
        raise refusal("extra_pos_embed_type", given["extra_pos_embed_type"], "null or learnable")
    most = [size // side for size, side in zip(numbers(given, "max_size", 3, integer=True), patch, strict=True)]
    text_dim = int_at(given, "text_embed_dim", _MOST)
    text: dict[str, Any] = {"text_dim": text_dim, "text_projection": None, "base_fps": 24.0}
    if flag(given, "use_crossattn_projection", False):  # 2.5: features of several layers, and no frame rate
        if given["encoder_hidden_states_channels"] != text_dim:
            raise refusal("encoder_hidden_states_channels", given["encoder_hidden_states_channels"], f"text_embed_dim, "
                          f"{text_dim}")  # fmt: skip
        projected = int_at(given, "crossattn_proj_in_channels", 1 << 24)
        text = {"text_dim": projected, "text_projection": text_dim, "base_fps": None}
    return {
        "in_channels": outputs, "width": heads * head_dim, "depth": int_at(given, "num_layers", 10_000), "heads": heads,
        "patch": tuple(patch), "mlp_ratio": above_zero(given, "mlp_ratio"),
        "modulation_rank": int_at(given, "adaln_lora_dim", _MOST),
        "learned_positions": tuple(most) if given["extra_pos_embed_type"] else None,
        "condition_channels": inputs - outputs, "padding_mask": flag(given, "concat_padding_mask", True),
        "gelu": "exact", "qk_norm_eps": _EPS, "noise_scale": 1.0, "text_as_given": True, "bias": False,
        "rope_scale": tuple(numbers(given, "rope_scale", 3)), **text,
    }  # fmt: skip


def config_of(model: DiT) -> dict[str, Json]:
    """The config.json of a model."""
    expected = {
        "gelu": (model.gelu, "exact"), "qk_norm_eps": (model.qk_norm_eps, _EPS),
        "noise_scale": (model.noise_scale, 1.0),
        "text_as_given": (model.text_as_given, True), "bias": (model.out.bias is not None, False),
        "modulation_rank": (model.modulation_rank is not None, True), "uncertainty": (model.uncertainty is None, True),
        "text_in_modulation": (model.text_embedding is None, True),
        "position_embedding": (model.position_embedding is None, True), "rope_theta": (model.rope.theta, 10_000.0),
        "base_fps": (model.rope.base_fps, None if model.text_projection is not None else 24.0),
    }  # fmt: skip
    if type(model) is not DiT:
        raise DataError(f"a {type(model).__name__} is not a network of Cosmos; {CLASS} is a DiT")
    if other := [name for name, (own, theirs) in expected.items() if own != theirs]:
        raise DataError(f"the model is not a Cosmos, by its {', '.join(other)}; conf/model/cosmos_7b.yaml is one, and "
                        f"diffusers has no other like this")  # fmt: skip
    text = model.text_projection is not None
    most = model.learned_positions.most if model.learned_positions is not None else None
    size = _NO_POSITIONS if most is None else tuple(n * side for n, side in zip(most, model.patch, strict=True))
    return {
        "_class_name": CLASS, "in_channels": model.in_channels + model.condition_channels,
        "out_channels": model.in_channels, "num_attention_heads": model.heads,
        "attention_head_dim": model.width // model.heads, "num_layers": model.depth,
        "mlp_ratio": model.mlp_hidden / model.width, "text_embed_dim": model.context_dim,
        "adaln_lora_dim": model.modulation_rank, "max_size": list(size), "patch_size": list(model.patch),
        "rope_scale": list(model.rope.scale), "concat_padding_mask": model.padding_mask,
        "extra_pos_embed_type": None if most is None else "learnable", "use_crossattn_projection": text,
        "crossattn_proj_in_channels": model.text_dim if text else 1024,
        "encoder_hidden_states_channels": model.context_dim if text else 1024, "controlnet_block_every_n": None,
        "img_context_dim_in": None,
    }  # fmt: skip


def tensors_of(model: DiT) -> dict[str, TensorMap]:
    """Where each parameter is in diffusers."""
    there = {name: alias(target) for name, target in _OUTSIDE.items()}
    there["out.weight"] = patch_rows("proj_out.weight", model.patch, "hwt")
    there |= {
        f"learned_positions.{ours}": alias(f"learnable_pos_embed.pos_emb_{axis}") for ours, axis in _TABLES.items()
    }
    for number in range(model.depth):
        here, block = f"blocks.{number}", f"transformer_blocks.{number}"
        there |= {f"{here}.{ours}.weight": alias(f"{block}.{theirs}.weight") for ours, theirs in _INSIDE.items()}
        for part, (ours, linear) in product(range(3), (("down", 1), ("up", 2))):
            target = f"{block}.norm{part + 1}.linear_{linear}.weight"
            there[f"{here}.modulation.{ours}.{part}.weight"] = alias(target)
        for ours, names in (("self_attention.qkv", "qkv"), ("cross_attention.kv", "kv")):
            attention = "attn1" if ours.startswith("self") else "attn2"
            targets = [f"{block}.{attention}.to_{x}.weight" for x in names]
            there[f"{here}.{ours}.weight"] = by_head(targets, model.rope.head_dim)
    return {name: there[name] for name, _ in model.named_parameters() if not is_adapter(name)}
