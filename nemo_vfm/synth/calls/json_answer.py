"""Reads JSON out of answers, with prose or a fence around it."""

import json
import re

from nemo_vfm.core.types.json_value import Json

_BEGIN = re.compile(r"[\[{]")
_MOST_LETTERS, _MOST_TRIES = 100_000, 20


class NoJson(Exception):
    """An answer holds none."""


def json_in(answer: str) -> Json:
    """The answer as JSON; else the first list or mapping in it.

    Raises:
        NoJson: there is none, or it is too long.
    """
    text = answer.strip()
    if len(text) > _MOST_LETTERS:
        raise NoJson
    places = [0, *(match.start() for match in _BEGIN.finditer(text))]
    for place in places[:_MOST_TRIES]:
        try:
            found, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, list | dict) or end == len(text):
            return found
    raise NoJson


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
