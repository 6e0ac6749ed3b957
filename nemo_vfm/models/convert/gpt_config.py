# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""config.json of a language model as transformers writes it in, the arguments of GPT out; and the way back.

Known are Llama, Mistral, Qwen 2 and 3 and Nemotron. Whatever would make another function of the same weights is
refused by name, never left out in silence.
"""

from collections.abc import Mapping
from typing import Any

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types import Json
from nemo_vfm.models.blocks.text_rope import LongContext, TextRope
from nemo_vfm.models.gpt import GPT

#: Architecture by transformers' name -> what it has that its config does not say.
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {},
    "Qwen2ForCausalLM": {"qkv_bias": True},
    "Qwen3ForCausalLM": {"qk_norm": True},
    "NemotronForCausalLM": {"norm": "layernorm1p", "activation": "squared_relu"},
}
_PLAIN: dict[str, Any] = {"norm": "rmsnorm", "activation": "swiglu", "qkv_bias": False, "qk_norm": False}
_ACTIVATIONS = {"silu": "swiglu", "relu2": "squared_relu"}


def arguments_of(config: Mapping[str, Json]) -> dict[str, Any]:
    """What GPT is to be built with.

    Raises:
        DataError: another architecture, or a setting that GPT does not have.
    """
    family = _family(config)
    _refuse_others(config, family)
    heads = config["num_attention_heads"]
    return {
        "vocab": config["vocab_size"],
        "width": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "heads": heads,
        "groups": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "mlp_hidden": config["intermediate_size"],
        "activation": _ACTIVATIONS[config["hidden_act"]],
        "eps": config.get("norm_eps" if family == "NemotronForCausalLM" else "rms_norm_eps", 1e-5),
        "rope": _rope(config),
        "tied": bool(config.get("tie_word_embeddings", False)),
        **FAMILIES[family],
    }


def _family(config: Mapping[str, Json]) -> str:
    names = config.get("architectures") or ["none"]
    if names[0] not in FAMILIES:
        raise DataError(f"config.json says {names[0]}; known language models are {', '.join(FAMILIES)}")
    return str(names[0])


def _refuse_others(config: Mapping[str, Json], family: str) -> None:
    wrong = {
        "attention_bias": config.get("attention_bias", False) is not False,
        "mlp_bias": config.get("mlp_bias", False) is not False,
        "hidden_act": config.get("hidden_act") not in _ACTIVATIONS
        or (config["hidden_act"] == "relu2") != (family == "NemotronForCausalLM"),
        "sliding_window": config.get("use_sliding_window", family == "MistralForCausalLM")
        and config.get("sliding_window") is not None,
    }
    for name, refused in wrong.items():
        if refused:
            raise DataError(f"config.json of a {family} says {name}: {config.get(name)}, which GPT does not have")


def _rope(config: Mapping[str, Json]) -> TextRope:
    """transformers 5 has all of it in rope_parameters, earlier ones have it in several places."""
    told: dict[str, Json] = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = told.get("rope_type", told.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise DataError(f"config.json asks for rotary positions of type {kind}; known are default and llama3")
    usual = {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5 if _family(config) == "NemotronForCausalLM" else 1.0}
    theta, share = (float({**usual, **config, **told}[name] or usual[name]) for name in usual)
    return TextRope(theta=theta, share=share, long_context=_long(told) if kind == "llama3" else None)


def _long(told: Mapping[str, Json]) -> LongContext:
    trained_on = told["original_max_position_embeddings"]
    return LongContext(
        float(told["factor"]), float(told["low_freq_factor"]), float(told["high_freq_factor"]), trained_on
    )


def config_of(model: GPT, most_tokens: int) -> dict[str, Json]:
    """config.json for transformers.

    Args:
        model: trained.
        most_tokens: the longest text it was trained on.

    Raises:
        DataError: no architecture of transformers is the same function.
    """
    sizes, family = model.sizes, _family_of(model)
    eps = "norm_eps" if family == "NemotronForCausalLM" else "rms_norm_eps"
    act = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == sizes.activation)
    return {
        "architectures": [family], "model_type": family.removesuffix("ForCausalLM").lower(), "torch_dtype": "float32",
        "vocab_size": model.vocab, "hidden_size": model.width, "num_hidden_layers": model.depth,
        "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.groups, "head_dim": sizes.head_dim,
        "intermediate_size": sizes.mlp_hidden, "hidden_act": act, eps: sizes.eps, "tie_word_embeddings": model.tied,
        "max_position_embeddings": most_tokens, "initializer_range": model.init_std, **_rope_told(model.rope),
    }  # fmt: skip


def _family_of(model: GPT) -> str:
    sizes = model.sizes
    wanted = {name: getattr(sizes, name) for name in _PLAIN}
    for family, has in FAMILIES.items():
        if _PLAIN | has == wanted:
            return family
    told = ", ".join(f"{name} {value}" for name, value in wanted.items())
    raise DataError(f"no architecture of transformers has {told} together")


def _rope_told(rope: TextRope) -> dict[str, Json]:
    """As both transformers 4 and 5 read it."""
    told: dict[str, Json] = {"rope_type": "default", "rope_theta": rope.theta, "partial_rotary_factor": rope.share}
    if (long := rope.long_context) is not None:
        told |= {
            "rope_type": "llama3",
            "factor": long.factor,
            "low_freq_factor": long.low_freq_factor,
            "high_freq_factor": long.high_freq_factor,
            "original_max_position_embeddings": long.trained_on,
        }
    return {"rope_parameters": told, "rope_theta": rope.theta, "partial_rotary_factor": rope.share}
