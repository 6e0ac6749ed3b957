"""Knows keys of recipes: where those of earlier versions stand now, and which change only how the work is done."""

import re
from collections.abc import Mapping
from typing import Any

_INERT = re.compile(
    r"num_workers|pace|budget|every_steps|keep_clips|keep_(?:last|best|every_steps)"
    r"|(?:log|save|checkpoint|preview|validate)_every(?:_\w+)?"
)
#: By class: an argument that it had -> where that stands now, below the class.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "nemo_vfm.train.job.Train": {
        "duration": "loop.duration", "phases": "loop.phases", "checkpoint": "loop.checkpoint",
        "validation": "loop.validation", "start_from": "weights.start_from", "adapters": "weights.adapters",
        "ema": "callbacks.ema", "skip": "callbacks.skip",
    },
}  # fmt: skip
#: What a component once meant by null and says today by its absence.
_ABSENT_FOR_NULL = ("callbacks.ema", "callbacks.skip")


def is_inert(key: str) -> bool:
    """Whether a key's value has no influence on what a finished step holds."""
    return _INERT.fullmatch(key) is not None


def current_key(component: str, key: str) -> str | None:
    """Where an argument of an earlier version stands today, below its class; None where it never moved.

    `most_` and `least_` are `max_` and `min_` today, in every class of ours.
    """
    if known := RENAMED.get(component, {}).get(key):
        return known
    word, _, rest = key.partition("_")
    bound = {"most": "max", "least": "min"}.get(word) if component.startswith("nemo_vfm.") else None
    return f"{bound}_{rest}" if bound and rest else None


def moved_keys(component: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(key, its address below the class today; empty where it is left out) of keys that an earlier version wrote."""
    pairs = [(old, current_key(str(component.get("_target_")), old)) for old in component]
    return [(old, "" if component[old] is None and new in _ABSENT_FOR_NULL else new) for old, new in pairs if new]


def with_new_keys(values: Any) -> Any:
    """The plain values of a recipe that an earlier version wrote out, under the keys of this one."""
    if isinstance(values, list):
        return [with_new_keys(one) for one in values]
    if not isinstance(values, dict):
        return values
    found: dict[str, Any] = {key: with_new_keys(below) for key, below in values.items()}
    for old, new in moved_keys(found):
        value = found.pop(old)
        above, _, last = new.rpartition(".")
        if above:
            found[above] = {**(found.get(above) or {}), last: value}
        elif new:
            found[new] = value
    return found
