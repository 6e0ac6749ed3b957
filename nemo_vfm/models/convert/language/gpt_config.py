"""Turns the config.json of a language model of transformers into the arguments of GPT, and a GPT into config.json.

In both directions the function stays the same, or the conversion is refused. `gpt_families` lists which architecture
can express what.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.language.expert_settings import experts_of, experts_told
from nemo_vfm.models.convert.language.gpt_families import FAMILIES, FIXED, IGNORED, MOST_TOKENS, READ, SIZES, Family
from nemo_vfm.models.convert.language.gpt_keys import flag, positive, same, shown, whole
from nemo_vfm.models.convert.language.gpt_rope import ropes_of, ropes_told, ropes_unsayable
from nemo_vfm.models.convert.language.layer_windows import window_of, window_told, window_unsayable
from nemo_vfm.models.gpt import GPT


def arguments_of(config: Mapping[str, Json]) -> dict[str, Any]:
    """What GPT is to be built with.

    Raises:
        DataError: another architecture, a setting that GPT does not have, or a key that is not known.
    """
    family = family_of(config)
    _require_known(config, family)
    sizes = _sizes(config, family)
    rope, near = ropes_of(config, family)
    if MOST_TOKENS[0] in config:
        whole(config, *MOST_TOKENS)
    return {
        **sizes,
        "activation": _activation(config, family),
        "norm": family.norm,
        "eps": positive({family.eps_key: family.eps, **config}, family.eps_key),
        "rope": rope,
        "tied": flag(config, "tie_word_embeddings", family.tied),
        "qkv_bias": family.qkv_bias,
        "qk_norm": family.qk_norm,
        "post_norm": family.post_norm,
        "query_scalar": _query_scalar(config, family),
        "scale_embedding": family.scale_embedding,
        "window": window_of(config, family, sizes["depth"], near),
        "experts": experts_of(config, sizes["depth"]) if family.experts else None,
    }


def _query_scalar(config: Mapping[str, Json], family: Family) -> int | None:
    key, missing = "query_pre_attn_scalar", family.query_scalar
    return None if missing is None else whole({key: missing, **config}, key, SIZES["width"][1])


def family_of(config: Mapping[str, Json]) -> Family:
    """Whose config.json it is.

    Raises:
        DataError: it is of none that GPT can be.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in tuple(FAMILIES):
        told = names[0] if isinstance(names, list) and len(names) == 1 else names
        raise DataError(f"config.json says {told if isinstance(told, str) else shown(told)}; known language models are "
                        f"{', '.join(FAMILIES)}; transformers loads others")  # fmt: skip
    family = FAMILIES[names[0]]
    if not same(kind := config.get("model_type", family.model_type), family.model_type):
        raise DataError(f"config.json says {names[0]} and model_type: {shown(kind)}, of which transformers takes the "
                        f"latter; they must be of one model")  # fmt: skip
    return family


def _require_known(config: Mapping[str, Json], family: Family) -> None:
    fixed = {**FIXED, **family.fixed, **({} if "switched" in family.window else {"use_sliding_window": False})}
    passed = READ | IGNORED | family.read | family.ignored | {family.eps_key, family.activation_key}
    if family.qkv_bias:  # no word about four projections is true of three
        fixed = {key: value for key, value in fixed.items() if key != "attention_bias"}
    known = passed | fixed.keys()
    if other := [f"{key}: {shown(config[key])} (only {shown(fixed[key])} works)" for key in config
                 if key in fixed and not same(config[key], fixed[key])]:  # fmt: skip
        raise DataError(f"config.json of a {family.architecture} says {', '.join(other)}, which GPT does not support")
    if unknown := [f"{shown(key)}: {shown(config[key])}" for key in config if key not in known]:
        raise DataError(f"config.json of a {family.architecture} says {', '.join(unknown)}, which is unknown and may "
                        f"change what the model computes; delete what does not")  # fmt: skip


def _sizes(config: Mapping[str, Json], family: Family) -> dict[str, int]:
    """What may be missing or null follows from the others: null always in the same way, missing by the family."""
    told: dict[str, Json] = {"num_key_value_heads": family.groups, "head_dim": family.head_dim, **config}
    if told["num_key_value_heads"] is None:
        told["num_key_value_heads"] = told.get("num_attention_heads")
    if told["head_dim"] is None:
        width, heads = (whole(told, *SIZES[name]) for name in ("width", "heads"))
        told["head_dim"] = width // heads
    return {name: whole(told, *key) for name, key in SIZES.items()}


def _activation(config: Mapping[str, Json], family: Family) -> str:
    told = config.get(family.activation_key, next(iter(family.activations)))
    if not isinstance(told, str) or told not in family.activations:
        raise DataError(f"config.json of a {family.architecture} says {family.activation_key}: {shown(told)}, which "
                        f"GPT does not have; known there are {', '.join(family.activations)}")  # fmt: skip
    return family.activations[told]


def config_of(model: GPT, most_tokens: int) -> dict[str, Json]:
    """config.json for transformers.

    Args:
        model: trained.
        most_tokens: the longest text it was trained on.

    Raises:
        DataError: no architecture of transformers is the same function.
    """
    family, sizes = _family_for(model), model.sizes
    act = next(theirs for theirs, ours in family.activations.items() if ours == sizes.activation)
    own = {name: getattr(model if name in ("vocab", "depth") else sizes, name) for name in SIZES}
    return {
        "architectures": [family.architecture], "model_type": family.model_type, "torch_dtype": "float32",
        **{key: own[name] for name, (key, _) in SIZES.items()}, family.activation_key: act,
        family.eps_key: sizes.eps,
        "tie_word_embeddings": model.tied, MOST_TOKENS[0]: most_tokens,
        **({"initializer_range": model.init_std} if model.init_std <= 1 else {}),  # transformers takes no larger one
        **({} if family.query_scalar is None else {"query_pre_attn_scalar": sizes.query_scalar or sizes.head_dim}),
        **window_told(model, family), **ropes_told(model, family, most_tokens),
        **({} if sizes.experts is None else experts_told(sizes.experts)),
    }  # fmt: skip


def _family_for(model: GPT) -> Family:
    """The first that can say all of it."""
    obstacles = {family.architecture: list(_unsayable(model, family)) for family in FAMILIES.values()}
    nearest = min(obstacles, key=lambda name: len(obstacles[name]))
    if obstacles[nearest]:
        raise DataError(f"no architecture of transformers is this model; the nearest, {nearest}, cannot say "
                        f"{', '.join(obstacles[nearest])}")  # fmt: skip
    return FAMILIES[nearest]


def _unsayable(model: GPT, family: Family) -> Iterator[str]:
    """What of a model a family has no words for."""
    sizes = model.sizes
    for name in ("norm", "qkv_bias", "qk_norm", "post_norm"):
        if getattr(sizes, name) != getattr(family, name):
            yield f"{name} {getattr(sizes, name)}"
    if model.scale_embedding != family.scale_embedding:
        yield f"scale_embedding {model.scale_embedding}"
    if family.query_scalar is None and sizes.query_scalar not in (None, sizes.head_dim):
        yield f"query_scalar {sizes.query_scalar}"
    if sizes.activation not in family.activations.values():
        yield f"activation {sizes.activation}"
    if (sizes.experts is not None) != family.experts:
        yield "experts" if sizes.experts else "no experts"
    if family.whole_heads and sizes.width % sizes.heads:
        yield f"width {sizes.width} with {sizes.heads} heads"
    yield from ropes_unsayable(model, family)
    yield from window_unsayable(model, family)
