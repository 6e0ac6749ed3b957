"""Parses an override of the command line (`a.b=v`, `~a.b`) and applies it to a tree."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from nemo_vfm.config.recipe_errors import UNSEEN, Mark, Source, did_you_mean, fail, printable, some_of
from nemo_vfm.config.tree import Map, Node, Scalar, drop, find, join, merge, put
from nemo_vfm.config.yaml_source import MAX_BYTES, parse, plain_value

_CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}
MAX_PARTS = 50  # of an address; what lays trees over one another recurses
_PATH = re.compile(r"[A-Za-z0-9_][\w-]*(?:\.[A-Za-z0-9_][\w-]*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Override:
    """A change asked for on the command line.

    Args:
        path: the dotted address.
        value: the new value; None means "remove".
        text: what stands behind the first `=`.
        mark: the place, for messages.
    """

    path: str
    value: Node | None
    text: str
    mark: Mark


def is_address(text: str) -> bool:
    """Names joined by dots, not too many."""
    return _PATH.fullmatch(text) is not None and text.count(".") < MAX_PARTS


def parse_override(word: str) -> Override:
    """Read `a.b=v` or `~a.b`; the first `=` separates.

    A value that begins with `[`, `{` or a quote is YAML; any other is taken whole, so `caption=one: two #3` is a text.
    """
    mark = Mark(Source.typed(word[:2000]))
    removed = word.startswith("~")
    path, equals, text = (word[1:], "=", "") if removed else word.partition("=")
    if not equals:
        raise fail(f"{word!r} is not a change; write key=value without spaces, or ~key to remove", mark)
    if not is_address(path):
        raise fail(f"{printable(path, 100)!r} is not an address{_address_advice(word, path)}", mark)
    at = Mark(mark.source, 1, 1 if removed else len(path) + 2)
    return Override(path, None if removed else _value(text, at), text, at)


def swept(words: Sequence[str]) -> list[str]:
    """Of the words behind --sweep those with several values, or the first where none has; the others are changes."""
    free = [word for word in words if not word.startswith(("~", "run_dir="))]
    return [word for word in free if len(alternatives(word.partition("=")[2])) > 1] or free[:1]


def alternatives(text: str) -> list[str]:
    """The parts between commas that stand in no bracket and no quotes."""
    open_: list[str] = []
    cuts = [-1]
    for position, letter in enumerate(text):
        if open_ and letter == open_[-1]:
            open_.pop()
        elif letter in _CLOSING and not (open_ and open_[-1] in "\"'"):
            open_.append(_CLOSING[letter])
        elif letter == "," and not open_:
            cuts.append(position)
    return [text[start + 1 : end].strip() for start, end in pairwise([*cuts, len(text)])]


def apply(root: Map, change: Override) -> Map:
    """The tree with one change made. A mapping merges with what is there, anything else replaces it."""
    _refuse_dead_end(root, change)
    present = find(root, change.path)
    _refuse_no_change(present, change.value, change.path)
    if change.value is not None:
        return put(root, change.path, merge(present, change.value) if present else change.value, change.mark)
    if present is None:
        raise fail(f"there is no {change.path} to remove{_suggestion(root, change.path)}", change.mark)
    return drop(root, change.path)


def _address_advice(word: str, path: str) -> str:
    """What the word would be here, for people who come from another command line."""
    if word.startswith("~") and "=" in path:
        return f"; to remove, write ~{path.partition('=')[0]}"
    better = path.strip("+-~ ").replace("/", ".").partition("@")[0]
    if better != path and is_address(better):
        why = "`+` does not exist here: an unknown key is an error; " if path.startswith("+") else ""
        return f"; {why}write {better}={word.partition('=')[2].strip()}"
    return f"; write at most {MAX_PARTS} names joined by dots, such as steps.train.lr"


def _value(text: str, mark: Mark) -> Node:
    if len(text) > MAX_BYTES or UNSEEN.search(text):
        raise fail("this value is too long or contains invisible characters", mark)
    if text[:1] in ("[", "{", '"', "'"):
        return _moved(parse(text, mark.source.name, is_file=False), mark)
    return Scalar(plain_value(text, mark), mark)


def _moved(node: Node, mark: Mark) -> Node:
    """The same tree with every place set to the word on the command line: its columns would count from the `=`."""
    if isinstance(node, Map):
        return Map({k: _moved(v, mark) for k, v in node.items.items()}, mark, dict.fromkeys(node.items, mark))
    if isinstance(node, Scalar):
        return replace(node, mark=mark)
    return type(node)(tuple(_moved(item, mark) for item in node.items), mark)


def _refuse_dead_end(root: Map, change: Override) -> None:
    """A change inside a list, a value or an interpolation would be lost or would surprise: say where to make it."""
    parts = change.path.split(".")
    for length in range(1, len(parts)):
        address = ".".join(parts[:length])
        above = find(root, address)
        if above is None:
            return
        if isinstance(above, Scalar) and isinstance(above.value, str) and "${" in above.value:
            raise fail(f"{address} is {above.value}; change that instead, or give {address} a mapping", change.mark)
        if isinstance(above, Scalar) and above.value is not None and above.value != "???":
            raise fail(f"{address} is a single value, which has no {parts[length]}", change.mark)
        if not isinstance(above, Map | Scalar):
            raise fail(f"{address} is a list, and lists are set as a whole: {address}=[...]", change.mark)


def _refuse_no_change(present: Node | None, value: Node | None, path: str) -> None:
    """An empty mapping would merge with a filled one and change nothing: say how to empty that."""
    if not (isinstance(present, Map) and isinstance(value, Map)) or value.target() not in (None, present.target()):
        return
    for name, below in value.items.items():
        _refuse_no_change(present.items.get(name), below, join(path, name))
    if value.items or not present.items:
        return
    names = list(present.items)
    how = (f"~{path} removes it" if present.target() else
           f"~{path} {path}={{}} empties it, and ~{join(path, names[0])} removes one")  # fmt: skip
    raise fail(f"an empty mapping changes nothing of what is there ({some_of(names)}): {how}", value.mark, path)


def _suggestion(root: Map, path: str) -> str:
    above, _, last = path.rpartition(".")
    node = find(root, above)
    known = [join(above, key) for key in node.items] if isinstance(node, Map) else []
    return did_you_mean(join(above, last), known)
