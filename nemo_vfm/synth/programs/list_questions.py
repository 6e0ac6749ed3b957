"""Asks for lists: read as they are, by a model where they are in another form, and asked for again."""

import json
import re
from collections.abc import Iterable, Sequence

from nemo_vfm.synth.programs.row_program import Ask, NoAnswer, Program, RowFailed

_MOST_ROUNDS = 2
LIST_PROMPTS = {"as_list": frozenset({"answer"}), "again": frozenset({"count"})}
_MARK = re.compile(r"^\s*(?:[-*\u2022\u2013]|\(?\d{1,3}[.):]|[a-zA-Z][.)])\s+(?P<item>\S.*)$")
_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_QUOTES = "\"'\u201c\u201d\u2018\u2019"
_MOST_LETTERS = 2000


def lists_of(asks: Sequence[Ask], most: int) -> Program[list[list[str]]]:
    """The list of each question, of at most so many items; empty where no answer holds one.

    An answer that is no list is given to the model to copy its items out (prompt `as_list`); an item that is no part
    of the answer is refused. A model that wrote no list at all is shown what it wrote, and asked by the prompt `again`.
    """
    found: list[list[str]] = [[] for _ in asks]
    open_asks = dict(enumerate(asks))
    for _ in range(_MOST_ROUNDS):
        texts = [_text(answer) for answer in ((yield list(open_asks.values())) if open_asks else [])]
        lists = yield from _read(texts, most, [ask.model for ask in open_asks.values()])
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


def num_topics(topics: int | Sequence[str]) -> int:
    """How many there are at most."""
    return topics if isinstance(topics, int) else len(set(topics))


def _read(texts: Sequence[str], most: int, models: Sequence[str]) -> Program[list[list[str]]]:
    """The list in each text."""
    lists = [items_of(text, most) for text in texts]
    other = [place for place, (text, items) in enumerate(zip(texts, lists, strict=True)) if text and not items]
    copies = (yield [Ask("as_list", {"answer": texts[place]}, model=models[place]) for place in other]) if other else []
    for place, copy in zip(other, copies, strict=True):
        whole = f" {plain_words(texts[place])} "
        items = items_of(_text(copy), most)
        lists[place] = [item for item in items if plain_words(item) and f" {plain_words(item)} " in whole]
    return lists


def _text(answer: str | NoAnswer) -> str:
    return "" if isinstance(answer, NoAnswer) else answer


def items_of(answer: str, most: int) -> list[str]:
    """The items of a list that a model wrote: JSON, numbered or with dashes; prose around it is left out.

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
