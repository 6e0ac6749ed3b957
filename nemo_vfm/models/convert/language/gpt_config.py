"""Turns the config.json of a language model of transformers into the arguments of GPT, and a GPT into config.json.

In both directions the function stays the same, or the conversion is refused. `gpt_families` lists which architecture
can express what. What transformers does not read of a sliding window is refused where it says otherwise: its cache of
keys and values reads it all the same.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.blocks.text.experts import Experts
from nemo_vfm.models.blocks.text.sliding_window import SlidingWindow
from nemo_vfm.models.blocks.text_rope import TextRope
from nemo_vfm.models.convert.language.config_keys import above_zero, flag, int_at, is_same, refusal, value_text
from nemo_vfm.models.convert.language.gpt_families import FAMILIES, FIXED, IGNORED, MAX_TOKENS, READ, SIZES, GptFamily
from nemo_vfm.models.convert.language.gpt_rope import ropes_of, ropes_told, ropes_unsayable
from nemo_vfm.models.gpt import GPT

_MAX_EXPERTS, _MAX_HIDDEN, _MOST = 4096, 1 << 20, 1000
_MAX_TOKENS = 1 << 40
_TYPES = ("full_attention", "sliding_attention")


def arguments_of(config: Mapping[str, Json]) -> dict[str, Any]:
    """What GPT is to be built with."""
    family = family_of(config)
    _require_known(config, family)
    # What may be missing or null follows from the others: null always in the same way, missing by the family.
    given: dict[str, Json] = {"num_key_value_heads": family.groups, "head_dim": family.head_dim, **config}
    if given["num_key_value_heads"] is None:
        given["num_key_value_heads"] = given.get("num_attention_heads")
    if given["head_dim"] is None:
        width, heads = (int_at(given, *SIZES[name]) for name in ("width", "heads"))
        given["head_dim"] = width // heads
    sizes = {name: int_at(given, *key) for name, key in SIZES.items()}
    rope, near = ropes_of(config, family)
    if MAX_TOKENS[0] in config:
        int_at(config, *MAX_TOKENS)
    key, scalar = "query_pre_attn_scalar", family.query_scalar
    told = config.get(family.activation_key, next(iter(family.activations)))
    if not isinstance(told, str) or told not in family.activations:
        raise DataError(f"config.json of a {family.architecture} says {family.activation_key}: {value_text(told)}, "
                        f"which GPT does not have; known there are {', '.join(family.activations)}")  # fmt: skip
    return {
        **sizes,
        "activation": family.activations[told],
        "norm": family.norm,
        "eps": above_zero({family.eps_key: family.eps, **config}, family.eps_key),
        "rope": rope,
        "tied": flag(config, "tie_word_embeddings", family.tied),
        "qkv_bias": family.qkv_bias,
        "qk_norm": family.qk_norm,
        "post_norm": family.post_norm,
        "query_scalar": None if scalar is None else int_at({key: scalar, **config}, key, SIZES["width"][1]),
        "scale_embedding": family.scale_embedding,
        "window": window_of(config, family, sizes["depth"], near),
        "experts": experts_of(config, sizes["depth"]) if family.experts else None,
    }


def family_of(config: Mapping[str, Json]) -> GptFamily:
    """Whose config.json it is."""
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in tuple(FAMILIES):
        told = names[0] if isinstance(names, list) and len(names) == 1 else names
        raise DataError(f"config.json says {told if isinstance(told, str) else value_text(told)}; known language "
                        f"models are {', '.join(FAMILIES)}; transformers loads others")  # fmt: skip
    family = FAMILIES[names[0]]
    if not is_same(kind := config.get("model_type", family.model_type), family.model_type):
        raise DataError(f"config.json says {names[0]}, but model_type: {value_text(kind)} is of another model, and is "
                        f"what transformers reads; for {names[0]} it is {family.model_type}")  # fmt: skip
    return family


def _require_known(config: Mapping[str, Json], family: GptFamily) -> None:
    fixed = {**FIXED, **family.fixed, **({} if "switched" in family.window else {"use_sliding_window": False})}
    passed = READ | IGNORED | family.read | family.ignored | {family.eps_key, family.activation_key}
    if family.qkv_bias:  # no word about four projections is true of three
        fixed = {key: value for key, value in fixed.items() if key != "attention_bias"}
    known = passed | fixed.keys()
    if other := [f"{key}: {value_text(config[key])} (only {value_text(fixed[key])} works)" for key in config
                 if key in fixed and not is_same(config[key], fixed[key])]:  # fmt: skip
        raise DataError(f"config.json of a {family.architecture} says {', '.join(other)}, which GPT does not support")
    if unknown := [f"{value_text(key)}: {value_text(config[key])}" for key in config if key not in known]:
        raise DataError(f"config.json of a {family.architecture} says {', '.join(unknown)}, which is unknown and may "
                        f"change what the model computes; delete what does not")  # fmt: skip


def config_of(model: GPT, max_tokens: int) -> dict[str, Json]:
    """config.json for transformers; DataError where no architecture there is the same function."""
    obstacles = {family.architecture: list(_unsupported(model, family)) for family in FAMILIES.values()}
    nearest = min(obstacles, key=lambda name: len(obstacles[name]))
    if obstacles[nearest]:
        raise DataError(f"no architecture of transformers is this model; the nearest, {nearest}, cannot say "
                        f"{', '.join(obstacles[nearest])}")  # fmt: skip
    family, sizes = FAMILIES[nearest], model.sizes
    act = next(theirs for theirs, ours in family.activations.items() if ours == sizes.activation)
    own = {name: getattr(model if name in ("vocab", "depth") else sizes, name) for name in SIZES}
    return {
        "architectures": [family.architecture], "model_type": family.model_type, "torch_dtype": "float32",
        **{key: own[name] for name, (key, _) in SIZES.items()}, family.activation_key: act,
        family.eps_key: sizes.eps,
        "tie_word_embeddings": model.tied, MAX_TOKENS[0]: max_tokens,
        **({"initializer_range": model.init_std} if model.init_std <= 1 else {}),  # transformers takes no larger one
        **({} if family.query_scalar is None else {"query_pre_attn_scalar": sizes.query_scalar or sizes.head_dim}),
        **window_told(model, family), **ropes_told(model, family, max_tokens),
        **({} if sizes.experts is None else {
            "num_experts": sizes.experts.count, "num_experts_per_tok": sizes.experts.per_token,
            "moe_intermediate_size": sizes.experts.hidden, "norm_topk_prob": sizes.experts.normalised,
            "router_aux_loss_coef": sizes.experts.balance, "mlp_only_layers": list(sizes.experts.dense_layers),
            "decoder_sparse_step": 1,
        }),
    }  # fmt: skip


def _unsupported(model: GPT, family: GptFamily) -> Iterator[str]:
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
    if model.window is None:
        return
    if family.window == "never" or (family.window in ("always", "switched") and None in model.windows):
        yield "window" if family.window == "never" else "window.layers"
    if model.window.rope is not None and not family.two_thetas:
        yield "window.rope"


def window_of(
    config: Mapping[str, Json], family: GptFamily, depth: int, near: TextRope | None
) -> SlidingWindow | None:  # fmt: skip
    """What GPT is to be built with."""
    told = {"sliding_window": family.window_tokens, **config}
    is_on = told["sliding_window"] is not None
    if "switched" in family.window:
        is_on &= flag(config, "use_sliding_window", False)
    # Blocks with a window where `layer_types` is missing.
    layers = list(range(depth)) if is_on else []
    if family.window == "by layer":
        every = int_at({"sliding_window_pattern": 6, **config}, "sliding_window_pattern", _MAX_TOKENS)
        layers = [layer for layer in range(depth) if (layer + 1) % every]
    elif family.window == "switched by layer" and is_on:
        first = config.get("max_window_layers", 28)
        first = 0 if is_same(first, 0) else int_at({"max_window_layers": first}, "max_window_layers", _MAX_TOKENS)
        layers = layers[first:]
    if (types := config.get("layer_types")) is not None:
        is_free = family.window == "by layer" or (family.window == "switched by layer" and is_on)
        usual = None if is_free else layers
        if not isinstance(types, list) or len(types) != depth or not all(one in _TYPES for one in types):
            raise DataError(f"config.json says layer_types: {value_text(types)}; it must say {' or '.join(_TYPES)} of "
                            f"each of {depth} layers")  # fmt: skip
        layers = [layer for layer, one in enumerate(types) if one == _TYPES[1]]
        if usual is not None and layers != usual:
            raise DataError(f"config.json of a {family.architecture} says layer_types: {value_text(types)}, and "
                            f"sliding_window is for {len(usual)} of {depth} layers; leave out the "
                            f"wrong one")  # fmt: skip
    if not is_on and not layers:
        return None
    tokens = int_at(told, "sliding_window", _MAX_TOKENS)
    if family.window == "never":
        raise DataError(f"config.json of a {family.architecture} says sliding_window: {tokens}, and transformers has "
                        f"no such window there; set it to null")  # fmt: skip
    return SlidingWindow(tokens, None if len(layers) == depth else tuple(layers), near) if layers else None


def window_told(model: GPT, family: GptFamily) -> dict[str, Json]:
    """The keys of config.json."""
    if family.window == "never":
        return {}
    window = model.window
    layers = [layer for layer, tokens in enumerate(model.windows) if tokens]
    types: Json = [_TYPES[bool(tokens)] for tokens in model.windows]
    if family.window == "by layer":
        return {"sliding_window": family.window_tokens if window is None else window.tokens, "layer_types": types}
    if window is None:
        return {"sliding_window": None}
    told: dict[str, Json] = {"sliding_window": window.tokens}
    if "switched" in family.window:
        told["use_sliding_window"] = True
    if family.window == "switched by layer":
        told |= {"max_window_layers": layers[0], "layer_types": types}
    return told


def experts_of(config: Mapping[str, Json], depth: int) -> Experts:
    """What GPT is to be built with; what is missing is as in Qwen 3."""
    told: dict[str, Json] = {
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "router_aux_loss_coef": 0.001, "decoder_sparse_step": 1,
        **config,
    }  # fmt: skip
    names = [name for name in ("num_experts", "num_local_experts") if name in told]
    if len(names) == 2 and told[names[0]] != told[names[1]]:
        raise DataError(f"config.json says num_experts: {value_text(told[names[0]])} and num_local_experts: "
                        f"{value_text(told[names[1]])}, which mean the same; leave out the wrong one")  # fmt: skip
    balance = told["router_aux_loss_coef"]
    try:
        named = told.get("mlp_only_layers") or []
        if not isinstance(named, list) or not all(type(layer) is int for layer in named):
            raise refusal("mlp_only_layers", named, "a list of layers")
        step = int_at(told, "decoder_sparse_step", _MOST)
        return Experts(
            count=int_at(told, names[0], _MAX_EXPERTS) if names else 128,
            per_token=int_at(told, "num_experts_per_tok", _MAX_EXPERTS),
            hidden=int_at(told, "moe_intermediate_size", _MAX_HIDDEN),
            normalised=flag(told, "norm_topk_prob", False),
            balance=0.0 if is_same(balance, 0) or is_same(balance, 0.0) else above_zero(told, "router_aux_loss_coef"),
            dense_layers=tuple(layer for layer in range(depth) if layer in named or (layer + 1) % step),
        )
    except ValueError as error:
        raise DataError(f"config.json describes impossible experts: {error}") from error
