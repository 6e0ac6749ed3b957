"""Reads rotary positions from a config.json of transformers 4 or 5, and writes them so that both read them.

Version 4 has `rope_theta` and `partial_rotary_factor` at the top level and the rest in `rope_scaling`. Version 5 has
all of it in `rope_parameters`, but prefers `rope_scaling` where that is there. Settings that the two would read
differently are refused. Only the factor of YaRN is as in version 5, which is what config.json says: version 4 takes
the longest text over `original_max_position_embeddings` in its place.
"""

from collections.abc import Iterator, Mapping

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.blocks.text.rope_scaling import (
    LinearScaling,
    LongRope,
    YarnScaling,
    default_long_rope_magnitude,
    default_yarn_magnitude,
)
from nemo_vfm.models.blocks.text_rope import LongContext, RopeScaling, TextRope
from nemo_vfm.models.convert.language.config_keys import above_zero, flag, int_at, is_same, refusal, value_text
from nemo_vfm.models.convert.language.gpt_families import MAX_TOKENS, GptFamily
from nemo_vfm.models.gpt import GPT

_PLACES = ("rope_scaling", "rope_parameters")
_TRAINED_ON = "original_max_position_embeddings"
_FAR, _NEAR = "full_attention", "sliding_attention"
_NEAR_THETA = "rope_local_base_freq"
_PLAIN = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_KINDS = {
    "default": _PLAIN,
    "llama3": _PLAIN | {"factor", "low_freq_factor", "high_freq_factor", _TRAINED_ON},
    "linear": _PLAIN | {"factor"},
    "yarn": _PLAIN | {"factor", "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim",
                      _TRAINED_ON},
    "longrope": _PLAIN | {"short_factor", "long_factor", "factor", "attention_factor", _TRAINED_ON},
}  # fmt: skip
_NAMES: dict[type[RopeScaling], str] = {
    LongContext: "llama3", LinearScaling: "linear", YarnScaling: "yarn", LongRope: "longrope",
}  # fmt: skip


def ropes_of(config: Mapping[str, Json], family: GptFamily) -> tuple[TextRope, TextRope | None]:
    """What GPT is to be built with: for blocks without a window, and where those with one have their own, for these."""
    if not family.two_thetas:
        told = [place for place in _PLACES if config.get(place)]
        found = [_rope(_entry(config, place), config, family) for place in told] or [_rope({}, config, family)]
        if found[-1] != found[0]:
            raise DataError("config.json says one thing in rope_scaling and another in rope_parameters, and versions "
                            "of transformers differ in what they take; leave out the wrong one")  # fmt: skip
        return found[0], None
    # Version 4 has `rope_theta`, `rope_scaling` and `rope_local_base_freq`, and version 5 a mapping for each.
    both = _entry(config, "rope_parameters") if config.get("rope_parameters") else {}
    if more := sorted(both.keys() - {_FAR, _NEAR}):
        raise DataError(f"config.json of a {family.architecture} says {more[0]}: {value_text(both[more[0]])} in "
                        f"rope_parameters, where only {_FAR} and {_NEAR} are read")  # fmt: skip
    far, near = (dict(_entry(both, name)) if both.get(name) else {} for name in (_FAR, _NEAR))
    scaling = _entry(config, "rope_scaling") if config.get("rope_scaling") else {}
    for key in far.keys() & scaling.keys():
        if far[key] != scaling[key]:
            raise DataError(f"config.json says {key}: {value_text(scaling[key])} in rope_scaling and "
                            f"{value_text(far[key])} in rope_parameters; leave out the wrong one")  # fmt: skip
    far |= dict(scaling)
    for one, key, usual in ((far, "rope_theta", 1e6), (near, _NEAR_THETA, 1e4)):
        theta = config.get(key, one.get("rope_theta", usual))
        if one.get("rope_theta", theta) != theta:
            raise DataError(f"config.json says {key}: {value_text(theta)} on top and {value_text(one['rope_theta'])} "
                            f"for rotary positions; leave out the wrong one")  # fmt: skip
        one["rope_theta"] = theta
    rest = {key: value for key, value in config.items() if key != "rope_theta"}
    return _rope(far, rest, family), _rope(near, rest, family)


def _entry(config: Mapping[str, Json], place: str) -> Mapping[str, Json]:
    told = config[place]
    if not isinstance(told, Mapping):
        raise refusal(place, told, "a mapping")
    return told


def _rope(told: Mapping[str, Json], config: Mapping[str, Json], family: GptFamily) -> TextRope:
    kinds = [told[key] for key in ("rope_type", "type") if key in told] or ["default"]
    if family.stretches == {"longrope"}:  # Phi-3's other names for it
        kinds = ["longrope" if is_same(kind, "su") or is_same(kind, "yarn") else kind for kind in kinds]
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _KINDS or kind != kinds[0]:
            raise DataError(f"config.json asks for rotary positions of type {value_text(kind)}; known are "
                            f"{', '.join(_KINDS)}, under one name")  # fmt: skip
    kind = str(kinds[0])
    if kind != "default" and kind not in family.stretches:
        raise DataError(f"config.json of a {family.architecture} asks for rotary positions of type {kind}, which "
                        f"versions 4 and 5 of transformers do not both read there")  # fmt: skip
    if more := sorted(told.keys() - _KINDS[kind]):
        raise DataError(f"config.json says {more[0]}: {value_text(told[more[0]])} for rotary positions of type {kind}, "
                        f"which do not have it")  # fmt: skip
    merged: dict[str, Json] = {"rope_theta": 10_000.0, "partial_rotary_factor": family.share or 1.0}
    for key in merged:
        if key in config and key in told and config[key] != told[key]:
            raise DataError(f"config.json says {key}: {value_text(config[key])} on top and {value_text(told[key])} for "
                            f"rotary positions; leave out the wrong one")  # fmt: skip
    merged = merged | {key: config[key] for key in merged if key in config} | dict(told)
    share = above_zero(merged, "partial_rotary_factor")
    if family.share is None and share != 1:
        raise DataError(f"config.json of a {family.architecture} says partial_rotary_factor: {share}, and transformers "
                        "rotates whole heads there; delete that key if this is meant")  # fmt: skip
    theta = above_zero(merged, "rope_theta")
    try:
        stretch = _stretch(kind, told, config, family)
    except ValueError as error:
        raise DataError(f"config.json asks for impossible rotary positions: {error}") from error
    return TextRope(theta=theta, share=share, long_context=stretch)


def _stretch(kind: str, told: Mapping[str, Json], config: Mapping[str, Json], family: GptFamily) -> RopeScaling | None:
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(above_zero(told, "factor"))
        case "llama3":
            factor, low, high = (above_zero(told, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
            return LongContext(factor, low, high, _trained_on(told, config, family))
        case "yarn":
            factor, magnitude = above_zero(told, "factor"), _optional_number(told, "attention_factor")
            scales = _optional_number(told, "mscale"), _optional_number(told, "mscale_all_dim")
            if magnitude is None and scales[0] and scales[1]:
                magnitude = default_yarn_magnitude(factor, scales[0]) / default_yarn_magnitude(factor, scales[1])
            return YarnScaling(
                factor, _trained_on(told, config, family), beta_fast=_optional_number(told, "beta_fast") or 32.0,
                beta_slow=_optional_number(told, "beta_slow") or 1.0, truncate=flag(told, "truncate", True),
                attention_factor=magnitude,
            )  # fmt: skip
    short, long = (_numbers(told, key) for key in ("short_factor", "long_factor"))
    trained_on = _trained_on(told, config, family)
    longer = _optional_number(told, "factor") or int_at(config, *MAX_TOKENS) / trained_on
    magnitude = _optional_number(told, "attention_factor") or default_long_rope_magnitude(longer, trained_on)
    return LongRope(short, long, trained_on, magnitude)


def _trained_on(told: Mapping[str, Json], config: Mapping[str, Json], family: GptFamily) -> int:
    """Tokens before the stretching: on top, as Phi-3 has it, or beside the type, or else the longest text."""
    key, most = MAX_TOKENS
    on_top = config.get(_TRAINED_ON, family.trained_on)
    if on_top is None:
        return int_at({**config, **told}, _TRAINED_ON if _TRAINED_ON in told else key, most)
    if told.get(_TRAINED_ON, on_top) != on_top:
        raise DataError(f"config.json says {_TRAINED_ON}: {value_text(on_top)} on top and "
                        f"{value_text(told[_TRAINED_ON])} for rotary positions; leave out the wrong one")  # fmt: skip
    return int_at({_TRAINED_ON: on_top}, _TRAINED_ON, most)


def _optional_number(told: Mapping[str, Json], key: str) -> float | None:
    return None if told.get(key) is None else above_zero(told, key)


def _numbers(told: Mapping[str, Json], key: str) -> tuple[float, ...]:
    found = told.get(key)
    if not isinstance(found, list) or not found:
        raise refusal(key, found, "a list of numbers")
    return tuple(above_zero({key: one}, key) for one in found)


def ropes_told(model: GPT, family: GptFamily, max_tokens: int) -> dict[str, Json]:
    """The keys of config.json."""
    rope = model.rope
    on_top: dict[str, Json] = {"rope_theta": rope.theta}
    if family.share is not None:
        on_top["partial_rotary_factor"] = rope.share
    stretched = _stretch_told(rope.long_context, family, max_tokens)
    scaling: dict[str, Json] = {"rope_scaling": stretched} if stretched else {}
    if isinstance(rope.long_context, LongRope):
        scaling[_TRAINED_ON] = rope.long_context.trained_on
    far = (stretched or {"rope_type": "default"}) | on_top
    if not family.two_thetas:
        return {"rope_parameters": far, **scaling, **on_top}
    near = _window_rope(model).theta
    return {"rope_parameters": {_FAR: far, _NEAR: {"rope_type": "default", "rope_theta": near}}, _NEAR_THETA: near,
            **scaling, **on_top}  # fmt: skip


def _stretch_told(given: RopeScaling | None, family: GptFamily, max_tokens: int) -> dict[str, Json]:
    match given:
        case LongContext():
            return {"rope_type": "llama3", "factor": given.factor, "low_freq_factor": given.low_freq_factor,
                    "high_freq_factor": given.high_freq_factor, _TRAINED_ON: given.trained_on}  # fmt: skip
        case LinearScaling():
            return {"rope_type": "linear", "factor": given.factor}
        case YarnScaling():
            return {"rope_type": "yarn", "factor": given.factor, "beta_fast": given.beta_fast,
                    "beta_slow": given.beta_slow, "truncate": given.truncate, "attention_factor": given.magnitude,
                    _TRAINED_ON: given.trained_on}  # fmt: skip
        case LongRope():
            told: dict[str, Json] = {"short_factor": list(given.short_factor), "long_factor": list(given.long_factor)}
            usual = default_long_rope_magnitude(max_tokens / given.trained_on, given.trained_on)
            if given.attention_factor != usual:
                told["attention_factor"] = given.attention_factor
            if family.trained_on is not None:  # version 4 allows Phi-3 these three keys alone
                return {"type": "longrope", **told}
            return {"rope_type": "longrope", _TRAINED_ON: given.trained_on, **told}
    return {}


def ropes_unsayable(model: GPT, family: GptFamily) -> Iterator[str]:
    """What of a model's positions a family has no words for."""
    rope = model.rope
    if family.share is None and model.rotated != model.sizes.head_dim:
        yield f"rope.share {rope.share}"
    if rope.long_context is not None and _NAMES[type(rope.long_context)] not in family.stretches:
        yield "rope.long_context"
    if family.two_thetas and (_window_rope(model).long_context is not None or _window_rope(model).share != 1):
        yield "window.rope"


def _window_rope(model: GPT) -> TextRope:
    """Positions of blocks with a window, were there one."""
    return model.rope if model.window is None or model.window.rope is None else model.window.rope
