"""Flattens a composed recipe to `{address: value}`, which trackers list and compare as a run's settings."""

import json
from collections.abc import Iterator, Mapping

from nemo_vfm.core.secret import conceal_keys
from nemo_vfm.core.types.json_value import Json


def flatten(settings: Mapping[str, Json]) -> dict[str, str | int | float | bool]:
    """Every single value by its dotted address; lists of values, and what is null or empty, become text."""
    return dict(_flat(settings, ""))


def _flat(value: Json, address: str) -> Iterator[tuple[str, str | int | float | bool]]:
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        value = {str(place): item for place, item in enumerate(value)}
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{address}.{key}" if address else str(key))
    elif isinstance(value, int | float):
        yield address, value
    else:
        yield address, conceal_keys(value if isinstance(value, str) else json.dumps(value))
