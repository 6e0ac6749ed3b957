# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads rotary positions from a config.json of transformers 4 or 5, and writes them so that both read them.

Version 4 has `rope_theta` and `partial_rotary_factor` at the top level and the rest in `rope_scaling`. Version 5 has
all of it in `rope_parameters`, but prefers `rope_scaling` where that is there. Settings that the two would read
differently are refused.
"""

from collections.abc import Mapping

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.blocks.text_rope import LongContext, TextRope
from nemo_vfm.models.convert.gpt_families import MOST_TOKENS, Family
from nemo_vfm.models.convert.gpt_keys import positive, shown, whole, wrong

_PLACES = ("rope_scaling", "rope_parameters")
_TRAINED_ON = "original_max_position_embeddings"
_PLAIN = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_KINDS = {
    "default": _PLAIN,
    "llama3": _PLAIN | {"factor", "low_freq_factor", "high_freq_factor", _TRAINED_ON},
}


def rope_of(config: Mapping[str, Json], family: Family) -> TextRope:
    """What GPT is to be built with.

    Raises:
        DataError: it is of a kind that GPT does not have, or is said twice and differently.
    """
    told = [place for place in _PLACES if config.get(place)]
    found = [_rope(_entry(config, place), config, family) for place in told] or [_rope({}, config, family)]
    if found[-1] != found[0]:
        raise DataError("config.json says one thing in rope_scaling and another in rope_parameters, and versions of "
                        "transformers differ in what they take; leave out the wrong one")  # fmt: skip
    return found[0]


def _entry(config: Mapping[str, Json], place: str) -> Mapping[str, Json]:
    told = config[place]
    if not isinstance(told, Mapping):
        raise wrong(place, told, "a mapping")
    return told


def _rope(told: Mapping[str, Json], config: Mapping[str, Json], family: Family) -> TextRope:
    kind = _kind(told)
    if kind == "llama3" and not family.long_context:
        raise DataError(f"config.json of a {family.architecture} asks for rotary positions of type {kind}, which "
                        f"transformers 4 does not read there and version 5 does")  # fmt: skip
    if more := sorted(told.keys() - _KINDS[kind]):
        raise DataError(f"config.json says {more[0]}: {shown(told[more[0]])} for rotary positions of type {kind}, "
                        f"which do not have it")  # fmt: skip
    merged: dict[str, Json] = {"rope_theta": 10_000.0, "partial_rotary_factor": family.share or 1.0}
    for key in merged:
        if key in config and key in told and config[key] != told[key]:
            raise DataError(f"config.json says {key}: {shown(config[key])} on top and {shown(told[key])} for rotary "
                            f"positions; leave out the wrong one")  # fmt: skip
    merged = merged | {key: config[key] for key in (*merged, MOST_TOKENS[0]) if key in config} | dict(told)
    share = positive(merged, "partial_rotary_factor")
    if family.share is None and share != 1:
        raise DataError(f"config.json of a {family.architecture} says partial_rotary_factor: {share}, and transformers "
                        "rotates whole heads there; delete that key if this is meant")  # fmt: skip
    return TextRope(theta=positive(merged, "rope_theta"), share=share,
                    long_context=_long(merged) if kind == "llama3" else None)  # fmt: skip


def _kind(told: Mapping[str, Json]) -> str:
    kinds = [told[key] for key in ("rope_type", "type") if key in told] or ["default"]
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _KINDS or kind != kinds[0]:
            raise DataError(f"config.json asks for rotary positions of type {shown(kind)}; known are "
                            f"{' and '.join(_KINDS)}, under one name")  # fmt: skip
    return str(kinds[0])


def _long(told: Mapping[str, Json]) -> LongContext:
    factor, low, high = (positive(told, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    key, most = MOST_TOKENS
    trained_on = whole(told, _TRAINED_ON if _TRAINED_ON in told else key, most)
    try:
        return LongContext(factor, low, high, trained_on)
    except ValueError as error:
        raise DataError(f"config.json asks for impossible rotary positions: {error}") from error


def rope_told(rope: TextRope, family: Family) -> dict[str, Json]:
    """The keys of config.json."""
    on_top: dict[str, Json] = {"rope_theta": rope.theta}
    if family.share is not None:
        on_top["partial_rotary_factor"] = rope.share
    if (long := rope.long_context) is None:
        return {"rope_parameters": {"rope_type": "default", **on_top}, **on_top}
    stretched: dict[str, Json] = {
        "rope_type": "llama3", "factor": long.factor, "low_freq_factor": long.low_freq_factor,
        "high_freq_factor": long.high_freq_factor, _TRAINED_ON: long.trained_on,
    }  # fmt: skip
    return {"rope_parameters": stretched | on_top, "rope_scaling": stretched, **on_top}
