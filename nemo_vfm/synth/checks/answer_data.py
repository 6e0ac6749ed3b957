"""Finds tables of comma-separated values, and JSON, in answers with prose or a fence around them."""

import csv
import io
import itertools
import json
import re

from nemo_vfm.core.types.json_value import Json, no_json_number

_BEGIN = re.compile(r"[\[{]")
_MAX_LETTERS, _MAX_TRIES = 100_000, 20
_BLOCK = re.compile(r"^`{3,}[^\n`]*\n(.*?)^`{3,}", re.DOTALL | re.MULTILINE)
_DECODER = json.JSONDecoder(parse_constant=no_json_number)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class NoJson(Exception):
    """An answer holds none."""


def json_in(answer: str) -> Json:
    """The answer as JSON; else the first list or mapping in it.

    Raises:
        NoJson: there is none, or it is too long.
    """
    text = answer.strip()
    if len(text) > _MAX_LETTERS:
        raise NoJson
    places = [0, *(match.start() for match in _BEGIN.finditer(text))]
    for place in places[:_MAX_TRIES]:
        try:
            found, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, list | dict) or end == len(text):
            return found
    raise NoJson


def table_in(answer: str, min_rows: int, max_rows: int) -> str | None:
    """The table of an answer, written anew: names of columns, then rows that are as long, with a column of numbers.

    Prose before and after it is left out.

    Returns:
        None where there is no such table.
    """
    fenced = _BLOCK.search(answer)
    lines = (fenced[1] if fenced else answer).strip().splitlines()
    # From the first line with a comma that another follows, to the last such line before one without.
    pairs = enumerate(itertools.pairwise(lines))
    begin = next((place for place, (line, following) in pairs if "," in line and "," in following), len(lines))
    end = next((place for place in range(begin, len(lines)) if "," not in lines[place]), len(lines))
    try:
        rows = [[cell.strip() for cell in row]
                for row in csv.reader(lines[begin:end], strict=True, skipinitialspace=True)]  # fmt: skip
    except csv.Error:
        return None
    if not rows or not min_rows <= len(rows) - 1 <= max_rows:
        return None
    names = rows[0]
    if len(names) < 2 or not all(names) or len(set(names)) < len(names) or any(len(row) != len(names) for row in rows):
        return None
    if not any(all(map(_NUMBER.fullmatch, column)) for column in zip(*rows[1:], strict=True)):
        return None
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().strip()
