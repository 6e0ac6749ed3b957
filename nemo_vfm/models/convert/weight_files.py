# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Opens the safetensors files that transformers would take from a folder, and no others.

This follows transformers: `model.safetensors` if it is there, else the files that `model.safetensors.index.json` names.
Other files (other shards, another program's `consolidated.safetensors`) are left out, and named once.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import warn
from nemo_vfm.core.types.json_value import Json

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MAX_JSON_BYTES = 16 << 20


def opened(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """The open file that holds each weight, by name; `stack` closes them.

    Raises:
        DataError: files are missing or damaged, or do not hold what the index says.
    """
    if (folder / "adapter_config.json").exists():
        raise DataError(f"{folder.name} holds an adapter (adapter_config.json), which changes the model; merge it into "
                        f"the weights first")  # fmt: skip
    places = None if (folder / WHOLE).is_file() else _places(folder)
    names = [WHOLE] if places is None else sorted(set(places.values()))
    _tell_others(folder, names)
    files = {name: _open(folder / name, stack) for name in names}
    if places is not None:
        _require_as_indexed(folder, places, {name: file.keys() for name, file in files.items()})
    return {weight: file for file in files.values() for weight in file.keys()}  # noqa: SIM118 (no mapping)


def read_mapping(path: Path) -> dict[str, Json]:
    """A JSON file of a model's folder.

    Raises:
        DataError: it cannot be read, is too long, or is no mapping; or a key is there twice.
    """
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError("it is far too long")
        found = json.loads(path.read_bytes(), object_pairs_hook=_once)
        if not isinstance(found, dict):
            raise ValueError("it is not a mapping")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path.parent.name}/{path.name} cannot be read: {error}") from error
    return found


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key in found if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"it has {twice[:80]!r} twice")
    return found


def _places(folder: Path) -> dict[str, str]:
    """Weight -> name of its file, by the index."""
    if not (folder / INDEX).is_file():
        raise DataError(f"{folder.name} has neither {WHOLE} nor {INDEX}, which say where the weights are; other "
                        f"safetensors are not taken for them")  # fmt: skip
    places = read_mapping(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise DataError(f"{folder.name}/{INDEX} has no weight_map that says which file holds which weight")
    there = {path.name for path in folder.iterdir() if path.is_file()}  # a name that leads elsewhere is not among them
    for weight, name in places.items():
        if not isinstance(name, str) or name not in there or not name.endswith(".safetensors"):
            raise DataError(f"{folder.name}/{INDEX} places {weight[:80]} in {str(name)[:80]!r}; there is no such "
                            f"safetensors file in the folder")  # fmt: skip
    return places


def _tell_others(folder: Path, taken: Iterable[str]) -> None:
    others = sorted({path.name for path in folder.glob("*.safetensors")} - set(taken))
    if others:
        by = WHOLE if (folder / WHOLE).is_file() else INDEX
        warn(f"{folder.name}: the weights are those of {by}, as transformers takes them; not read: "
             f"{', '.join(others[:4])}{', ...' if len(others) > 4 else ''}")  # fmt: skip


def _open(path: Path, stack: ExitStack) -> Any:  # safetensors has no type for it
    from safetensors import SafetensorError, safe_open

    try:
        return stack.enter_context(safe_open(path, "pt"))
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path.parent.name}/{path.name} is damaged: {error}") from error


def _require_as_indexed(folder: Path, places: Mapping[str, str], held: Mapping[str, Iterable[str]]) -> None:
    """A shard that holds more or less than the index says is one of another model, or of another time."""
    for name, weights in held.items():
        listed = {weight for weight, place in places.items() if place == name}
        if missing := sorted(listed - set(weights)):
            raise DataError(f"{folder.name}/{name} has no {missing[0]}, which {INDEX} places there")
        if more := sorted(set(weights) - listed):
            place = f"places in {places[more[0]]}" if more[0] in places else "does not name"
            raise DataError(f"{folder.name}/{name} holds {more[0]}, which {INDEX} {place}; one of them is of another "
                            f"model")  # fmt: skip
