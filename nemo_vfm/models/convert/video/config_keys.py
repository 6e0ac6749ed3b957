"""Reads lists and optional counts of a video model's config.json, and refuses keys that nobody reads."""

from collections.abc import Collection, Mapping
from math import isfinite

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.language.gpt_keys import same, shown, whole, wrong

_MOST = 1 << 20
#: Keys that change nothing of what a model computes.
_SAID = frozenset({"_class_name", "_diffusers_version", "_name_or_path", "_commit_hash"})


def numbers(config: Mapping[str, Json], key: str, count: int, *, integer: bool = False) -> list[float]:
    """So many numbers above zero.

    Raises:
        DataError: it is something else.
    """
    value = config.get(key)
    kinds = (int,) if integer else (int, float)
    if (
        not isinstance(value, list)
        or len(value) != count
        or not all(type(one) in kinds and isfinite(one) and 0 < one <= _MOST for one in value)
    ):
        raise wrong(key, value, f"{count} {'whole ' if integer else ''}numbers above zero")
    return list(value) if integer else [float(one) for one in value]


def optional_whole(config: Mapping[str, Json], key: str, most: int = _MOST) -> int | None:
    """A count, or None where it is null or missing.

    Raises:
        DataError: it is something else.
    """
    return None if config.get(key) is None else whole(config, key, most)


def require_known(config: Mapping[str, Json], read: Collection[str], fixed: Mapping[str, Json]) -> None:
    """Refuse a key that nobody reads: it may change what the model computes.

    Raises:
        DataError: it names the keys.
    """
    if unknown := sorted(set(config) - set(read) - set(fixed) - _SAID):
        raise DataError(f"config.json has {', '.join(name[:60] for name in unknown)}, which is not known here and "
                        f"may change what the model computes")  # fmt: skip


def require_fixed(config: Mapping[str, Json], fixed: Mapping[str, Json]) -> None:
    """Refuse another value than the only one that is converted.

    Raises:
        DataError: it names the key.
    """
    for key, value in fixed.items():
        if key in config and not same(config[key], value):
            raise wrong(key, config[key], f"{shown(value)}, or be left out")
