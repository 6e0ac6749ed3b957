# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Flattens a composed recipe to `{address: value}`, which trackers list and compare as a run's settings."""

import json
import re

_LINE = re.compile(r"(?P<indent> *)(?P<dashes>(?:- )*)(?:(?P<key>[\w.$-][\w.$ -]*|\"[^\"]+\"):(?= |$) ?)?(?P<value>.*)")


def flatten(recipe: str) -> dict[str, str | int | float | bool]:
    """Every single value by its dotted address; lists of values stay text.

    The text is our own (two spaces a level, lists of values on one line), so that no room below the command line needs
    to read YAML. It names variables of the environment as `${env:X}` and holds none of their values.
    """
    found: dict[str, str | int | float | bool] = {}
    above: list[tuple[int, str]] = []  # (indentation, key) of the mappings around the line
    counts: dict[str, int] = {}
    for line in recipe.splitlines():
        match = _LINE.fullmatch(line)
        assert match is not None
        depth = len(match["indent"])
        above = [pair for pair in above if pair[0] < depth]
        if match["dashes"]:
            place = _join(above)
            counts[place] = counts.get(place, -1) + 1
            above.append((depth, str(counts[place])))
            depth += len(match["dashes"])
        if match["key"] and not match["value"]:
            above.append((depth, match["key"]))
        elif match["value"]:
            found[_join([*above, (depth, match["key"] or "")])] = _value(match["value"])
    return found


def _join(above: list[tuple[int, str]]) -> str:
    return ".".join(key.strip('"') for _, key in above if key)


def _value(text: str) -> str | int | float | bool:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool) else text
