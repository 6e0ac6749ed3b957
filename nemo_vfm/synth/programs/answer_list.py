"""Reads lists out of answers, without asking anybody again."""

import json
import re
from collections.abc import Iterable

_MARK = re.compile(r"^\s*(?:[-*\u2022\u2013]|\(?\d{1,3}[.):]|[a-zA-Z][.)])\s+(?P<item>\S.*)$")
_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_QUOTES = "\"'\u201c\u201d\u2018\u2019"
_MOST_LETTERS = 2000


def items_of(answer: str, most: int) -> list[str]:
    """The items of a list that a model wrote: JSON, numbered or with dashes; prose around it is left out.

    Args:
        answer: what it said.
        most: items beyond so many are left out.

    Returns:
        each item once, in their order; empty where there is no list.
    """
    text = _FENCE.sub("", answer)
    found = _json_items(text) or [match["item"] for line in text.splitlines() if (match := _MARK.match(line))]
    return list(_each_once(filter(None, map(_plain, found))))[:most]


def _json_items(text: str) -> list[str]:
    begin, end = text.find("["), text.rfind("]")
    if begin < 0 or end < begin:
        return []
    try:
        found = json.loads(text[begin : end + 1])
    except (ValueError, RecursionError):
        return []
    return [item for item in found if isinstance(item, str)]


def _plain(item: str) -> str:
    """Without the marks of emphasis and quotes around it."""
    text = item.strip().strip("*_`").strip().rstrip(",").strip()
    if len(text) > 1 and text[0] in _QUOTES and text[-1] in _QUOTES:
        text = text[1:-1].strip()
    return text[:_MOST_LETTERS]


def _each_once(items: Iterable[str]) -> Iterable[str]:
    seen = set[str]()
    for item in items:
        if (key := plain_words(item)) not in seen:
            seen.add(key)
            yield item


def plain_words(text: str) -> str:
    """Its words in lower case, with a space between: what two items have in common that differ in marks alone."""
    return " ".join(re.findall(r"\w+", text.casefold()))
