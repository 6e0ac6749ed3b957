"""Reads values of a config.json; refuses a wrong one, or a key that nobody reads, in a sentence that names it."""

import json
import sys
from collections.abc import Collection, Mapping
from math import isfinite

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json

_MOST = 1 << 20
#: Keys that change nothing of what a model computes.
_SAID = frozenset({"_class_name", "_diffusers_version", "_name_or_path", "_commit_hash"})


def int_at(config: Mapping[str, Json], key: str, most: int) -> int:
    """A count."""
    value = _there(config, key)
    if type(value) is not int or not 1 <= value <= most:
        raise refusal(key, value, f"a whole number from 1 to {most:,}")
    return value


def above_zero(config: Mapping[str, Json], key: str) -> float:
    """A number above zero."""
    value = _there(config, key)
    if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
        raise refusal(key, value, "a number above zero")
    return float(value)


def flag(config: Mapping[str, Json], key: str, default: bool) -> bool:
    """True or false; `default` where it is missing."""
    value = config.get(key, default)
    if type(value) is not bool:
        raise refusal(key, value, "true or false")
    return value


def is_same(one: Json, other: Json) -> bool:
    """Equal, and of one type: 0 is not false."""
    return type(one) is type(other) and one == other


def refusal(key: str, value: Json, expected: str) -> DataError:
    """The sentence about a value that cannot be."""
    return DataError(f"config.json says {key}: {value_text(value)}; it must be {expected}")


def value_text(value: Json) -> str:
    """A value as the file has it, never longer than a line."""
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # no whole number above 4,300 digits is printed
        return "a value too long to print"
    return text if len(text) <= 80 else text[:77] + "..."


def _there(config: Mapping[str, Json], key: str) -> Json:
    if key not in config:
        raise DataError(f"config.json has no {key}, without which the model is not known")
    return config[key]


def numbers(config: Mapping[str, Json], key: str, count: int, *, integer: bool = False) -> list[float]:
    """So many numbers above zero."""
    value = config.get(key)
    kinds = (int,) if integer else (int, float)
    if (
        not isinstance(value, list)
        or len(value) != count
        or not all(type(one) in kinds and isfinite(one) and 0 < one <= _MOST for one in value)
    ):
        raise refusal(key, value, f"{count} {'whole ' if integer else ''}numbers above zero")
    return list(value) if integer else [float(one) for one in value]


def optional_whole(config: Mapping[str, Json], key: str, most: int = _MOST) -> int | None:
    """A count, or None where it is null or missing."""
    return None if config.get(key) is None else int_at(config, key, most)


def require_known(config: Mapping[str, Json], read: Collection[str], fixed: Mapping[str, Json]) -> None:
    """Refuse a key that nobody reads, or another value than the only one that is converted: both change the model."""
    if unknown := sorted(set(config) - set(read) - set(fixed) - _SAID):
        raise DataError(f"config.json has {', '.join(name[:60] for name in unknown)}, which is not known here and "
                        f"may change what the model computes")  # fmt: skip
    for key, value in fixed.items():
        if key in config and not is_same(config[key], value):
            raise refusal(key, config[key], f"{value_text(value)}, or be left out")
