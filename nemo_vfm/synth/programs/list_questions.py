"""Asks for lists: read as they are, by a model where they are in another form, and asked for again."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

from nemo_vfm.synth.programs.row_program import Ask, NoAnswer, Program, RowFailed

Place = TypeVar("Place")
_MAX_ROUNDS = 2
LIST_PROMPTS = {"as_list": frozenset({"answer"}), "again": frozenset({"count"})}
_MARK = re.compile(r"^\s*(?:[-*\u2022\u2013]|\(?\d{1,3}[.):]|[a-zA-Z][.)])\s+(?P<item>\S.*)$")
_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_QUOTES = "\"'\u201c\u201d\u2018\u2019"
_MAX_LETTERS = 2000


def lists_of(asks: Sequence[Ask], most: int) -> Program[list[list[str]]]:
    """The list of each question, of at most so many items; empty where no answer holds one.

    An answer that is no list is given to the model to copy its items out (prompt `as_list`); an item that is no part
    of the answer is refused. A model that wrote no list at all is shown what it wrote, and asked by the prompt `again`.
    """
    found: list[list[str]] = [[] for _ in asks]
    open_asks = dict(enumerate(asks))
    for _ in range(_MAX_ROUNDS):
        answers = (yield list(open_asks.values())) if open_asks else []
        texts = ["" if isinstance(answer, NoAnswer) else answer for answer in answers]
        lists = [items_of(text, most) for text in texts]
        models = [ask.model for ask in open_asks.values()]
        other = [place for place, (text, items) in enumerate(zip(texts, lists, strict=True)) if text and not items]
        asked = [Ask("as_list", {"answer": texts[place]}, model=models[place]) for place in other]
        for place, copy in zip(other, (yield asked) if asked else [], strict=True):
            whole, items = f" {plain_words(texts[place])} ", [] if isinstance(copy, NoAnswer) else items_of(copy, most)
            lists[place] = [item for item in items if plain_words(item) and f" {plain_words(item)} " in whole]
        for (place, ask), text, items in zip(list(open_asks.items()), texts, lists, strict=True):
            if items:
                found[place] = items
                del open_asks[place]
            else:
                before = (*ask.before, ask, {"role": "assistant", "content": text or "(nothing)"})
                open_asks[place] = Ask("again", {"count": str(most)}, before, model=ask.model)
    return found


def topics_of(topics: int | Sequence[str]) -> Program[list[str]]:
    """The topics that somebody names, each once, or as many of the model's."""
    if not isinstance(topics, int):
        return list(dict.fromkeys(topics))
    (found,) = yield from lists_of([Ask("topics", {"count": str(topics)})], topics)
    if not found:
        raise RowFailed("none of the model's answers to requests for a list of topics was a list")
    return found


def in_turn(lists: Sequence[Sequence[str]], places: Sequence[Place], kind: str) -> dict[str, Place]:
    """Each item once, with the place that its list is of: one of each list, then another, so few rows differ, too.

    Args:
        lists: of the model.
        places: one for each list.
        kind: of the items, in words.
    """
    every: dict[str, Place] = {}
    for number in range(max(map(len, lists), default=0)):
        for place, items in zip(places, lists, strict=True):
            for item in items[number : number + 1]:
                every.setdefault(item, place)
    if not every:
        raise RowFailed(f"none of the model's answers to requests for lists of {kind} was a list")
    return every


def num_topics(topics: int | Sequence[str]) -> int:
    """How many there are at most."""
    return topics if isinstance(topics, int) else len(set(topics))


def items_of(answer: str, most: int) -> list[str]:
    """The items of a list that a model wrote: JSON, numbered or with dashes; prose around it is left out.

    Returns:
        each item once, in their order; empty where there is no list.
    """
    text, found = _FENCE.sub("", answer), list[str]()
    begin, end = text.find("["), text.rfind("]")
    if 0 <= begin < end:
        with suppress(ValueError, RecursionError):
            found = [item for item in json.loads(text[begin : end + 1]) if isinstance(item, str)]
    found = found or [match["item"] for line in text.splitlines() if (match := _MARK.match(line))]
    once: dict[str, str] = {}
    for item in found:  # without the marks of emphasis and quotes around it
        plain = item.strip().strip("*_`").strip().rstrip(",").strip()
        if len(plain) > 1 and plain[0] in _QUOTES and plain[-1] in _QUOTES:
            plain = plain[1:-1].strip()
        if plain:
            once.setdefault(plain_words(plain[:_MAX_LETTERS]), plain[:_MAX_LETTERS])
    return list(once.values())[:most]


def plain_words(text: str) -> str:
    """Its words in lower case, with a space between: what two items have in common that differ in marks alone."""
    return " ".join(re.findall(r"\w+", text.casefold()))
