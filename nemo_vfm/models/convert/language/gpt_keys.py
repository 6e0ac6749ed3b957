"""Reads one value of config.json, or refuses it in a sentence that names the key."""

import json
import sys
from collections.abc import Mapping

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json


def whole(config: Mapping[str, Json], key: str, most: int) -> int:
    """A count.

    Raises:
        DataError: it is missing, no whole number, or not from 1 to `most`.
    """
    value = _there(config, key)
    if type(value) is not int or not 1 <= value <= most:
        raise wrong(key, value, f"a whole number from 1 to {most:,}")
    return value


def positive(config: Mapping[str, Json], key: str) -> float:
    """A number above zero.

    Raises:
        DataError: it is missing or something else.
    """
    value = _there(config, key)
    if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
        raise wrong(key, value, "a number above zero")
    return float(value)


def flag(config: Mapping[str, Json], key: str, default: bool) -> bool:
    """True or false; `default` where it is missing.

    Raises:
        DataError: it is something else.
    """
    value = config.get(key, default)
    if type(value) is not bool:
        raise wrong(key, value, "true or false")
    return value


def same(one: Json, other: Json) -> bool:
    """Equal, and of one type: 0 is not false."""
    return type(one) is type(other) and one == other


def wrong(key: str, value: Json, expected: str) -> DataError:
    """The sentence about a value that cannot be."""
    return DataError(f"config.json says {key}: {shown(value)}; it must be {expected}")


def shown(value: Json) -> str:
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
