"""Asks for lists: read as they are, by a model where they are in another form, and asked for again."""

from collections.abc import Sequence

from nemo_vfm.synth.programs.answer_list import items_of, plain_words
from nemo_vfm.synth.programs.row_program import Ask, NoAnswer, Program, RowFailed

_MOST_ROUNDS = 2
LIST_PROMPTS = {"as_list": frozenset({"answer"}), "again": frozenset({"count"})}


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
