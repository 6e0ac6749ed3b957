"""Computes fingerprints of settings, and stores findings about a file under them, so that no work is done twice."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from nemo_vfm.core.storage.files import read_json, sha256_text, write_json
from nemo_vfm.core.types.json_value import Json


@runtime_checkable
class Fingerprinted(Protocol):
    """Something whose settings do not say all: the bytes of weights matter, and not where they lie."""

    def fingerprint(self) -> str:
        """Changes whenever the same input would give another result."""
        ...


def settings(value: object) -> Json:
    """A component's class and constructor arguments, as plain JSON values, all the way down.

    A class whose results have changed says so by its attribute `results_revision`, a number above 1.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): settings(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return [settings(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Fingerprinted):
        return {**_class(value), "fingerprint": value.fingerprint()}
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    arguments = vars(value) if hasattr(value, "__dict__") else {name: getattr(value, name) for name in slots}
    # What begins with an underscore is what a component made of its settings, or loaded.
    return {**_class(value), **{key: settings(arguments[key]) for key in sorted(arguments) if not key.startswith("_")}}


def _class(value: object) -> dict[str, Json]:
    revision = getattr(type(value), "results_revision", 1)
    name = {"class": f"{type(value).__module__}.{type(value).__qualname__}"}
    return name if revision == 1 else {**name, "results_revision": revision}


def fingerprint(*parts: object) -> str:
    """Changes whenever a setting of any part changes."""
    return sha256_text(json.dumps([settings(part) for part in parts], sort_keys=True))[:16]


def in_names(decode: str) -> tuple[str, ...]:
    """What a place to decode adds to fingerprints: nothing for the CPU, whose pixels are equal everywhere."""
    return () if decode == "cpu" else (decode,)


class Cache:
    """One JSON file a key. A damaged entry is as if absent.

    Args:
        folder: where the files lie; its name is the fingerprint of all that an entry depends on besides its key.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> Json:
        """What was put, or None."""
        try:
            entry = read_json(self._folder / f"{key}.json")
        except (OSError, ValueError, RecursionError):
            return None
        return entry["value"] if isinstance(entry, dict) and entry.get("key") == key else None

    def put(self, key: str, value: Json) -> None:
        """Keep it; whole or not at all."""
        write_json(self._folder / f"{key}.json", {"key": key, "value": value})
