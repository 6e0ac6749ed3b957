"""Counts what a template takes, and foretells how long a text will be before it is made.

A value weighs as many letters as it has when it is written out in full: what a list holds twice counts twice. An
operation of Python takes a time in proportion to the weight of what it is given and of what it makes, and nobody can
stop it; so both are known before it begins.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any

from jinja2.utils import Namespace

from nemo_vfm.core.errors import DataError

MAX_LETTERS = 4 << 20  #: of any text that a template makes, and of all that it writes
MAX_ROUNDS = 1 << 20  #: of loops, macros and calls in one conversation
MAX_SECONDS = 10.0
MAX_BYTES = 256 << 20  #: of all that is made in one conversation, thrown away or not
_MAX_DEPTH = 100
_MAX_NUMBER = 1 << 40
_MAX_ARGUMENT = 1 << 16  # a number given to a call: widths, counts, precisions
_PART_LETTERS, _PART_BYTES = 4, 64  # of a value in a list, beside its own
_ESCAPED = 10  # letters that one letter is written as at most, such as \U000f1a00
_OFTEN = 1 << 16  # letters after which the time is looked at
_LISTS: tuple[type, ...] = (list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
_CONTAINERS = (dict, Namespace, *_LISTS)
_WIDTH = re.compile(r"%(?:\([^)]*\))?[-+ #0-9.]*\*|[%:][^a-zA-Z%{}]{0,40}\d{4}|\{[^{}]*\{")


class TemplateTooLong(DataError):
    """A template went beyond a limit."""


@dataclass(slots=True)
class RenderingUse:
    """What one rendering has used."""

    rounds: int = 0
    made: int = 0
    end: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)
    _unseen: int = 0

    def tick(self, letters: int = 256) -> None:
        """Count a round that works on so many letters. TemplateTooLong after too many, or too much time."""
        self.rounds += 1
        self._unseen += letters + 256
        if self.rounds > MAX_ROUNDS:
            raise TemplateTooLong(
                f"the chat template went through more than {MAX_ROUNDS:,} rounds for one conversation"
            )
        if self._unseen > _OFTEN:
            self._unseen = 0
            if time.monotonic() > self.end:
                raise TemplateTooLong(f"the chat template took longer than {MAX_SECONDS:g} s for one conversation")

    def keep(self, value: Any) -> Any:
        """Count a value that was made; here it is again. TemplateTooLong if it is too large, or all together are."""
        if isinstance(value, str | bytes):
            require_letters(len(value))
            self.made += sys.getsizeof(value)
        elif isinstance(value, list | tuple | dict):
            if len(value) > MAX_ROUNDS:
                raise TemplateTooLong(f"the chat template made a list of more than {MAX_ROUNDS:,} parts")
            self.made += sys.getsizeof(value) + _PART_BYTES * len(value)
        elif isinstance(value, int) and abs(value) > _MAX_NUMBER:
            raise TemplateTooLong(f"the chat template computed a number above {_MAX_NUMBER:,}")
        if self.made > MAX_BYTES:
            raise TemplateTooLong(f"the chat template made more than {MAX_BYTES >> 20} MiB for one conversation")
        return value


def require_letters(letters: int) -> None:
    """Refuse a text of so many letters."""
    if letters > MAX_LETTERS:
        raise TemplateTooLong(f"the chat template made a text of more than {MAX_LETTERS:,} characters")


def weight(value: Any) -> int:
    """Letters of a value that is written out in full, about. TemplateTooLong if they are too many, or too deep."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, _CONTAINERS):
        return _own_letters(value)
    level, total, depth = [value], 0, 0
    while level:
        deeper: list[Any] = []
        for one in level:
            total += _own_letters(one)
            if isinstance(one, dict):
                deeper += one.keys()
                deeper += one.values()
            elif isinstance(one, _LISTS):
                parts: Any = one
                deeper += parts
            elif isinstance(one, Namespace):  # its own attributes are those that a template gave it
                deeper += dict(object.__getattribute__(one, "_Namespace__attrs")).values()
            require_letters(total + _PART_LETTERS * len(deeper))
        level, depth = deeper, depth + 1
        if depth > _MAX_DEPTH:
            raise TemplateTooLong(f"the chat template made lists nested deeper than {_MAX_DEPTH}")
    return total


def _own_letters(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value) + _PART_LETTERS
    return _PART_LETTERS + (value.bit_length() // 3 if isinstance(value, int) else 0)


def materialise(value: Any) -> Any:
    """A value that can be looked at without using it up: what comes one by one, and ends, becomes a list."""
    if not isinstance(value, GeneratorType | map | filter | reversed | zip):
        return value
    found = []
    for one in value:
        found.append(one)
        if len(found) > MAX_ROUNDS:
            raise TemplateTooLong(f"the chat template made a list of more than {MAX_ROUNDS:,} parts")
    return found


def require_small(arguments: Iterable[Any]) -> None:
    """Refuse large numbers as arguments."""
    for one in arguments:
        if isinstance(one, int) and abs(one) > _MAX_ARGUMENT:
            raise TemplateTooLong(f"the chat template calls something with a number above {_MAX_ARGUMENT:,}")


def product(left: Any, right: Any) -> Any:
    """`left * right`."""
    for text, count in ((left, right), (right, left)):
        if isinstance(count, int) and not isinstance(text, int | float):
            require_letters(weight(text) * max(count, 0))
    return left * right


def power(left: Any, right: Any) -> Any:
    """`left ** right`."""
    if abs(right) > 64 or abs(left) > _MAX_ARGUMENT:
        raise TemplateTooLong("the chat template computes too high a power")
    return left**right


def format_percent(left: Any, right: Any) -> Any:
    """`left % right`."""
    if isinstance(left, str):
        require_letters(_percent_letters(left, right))
    return left % right


def _percent_letters(text: str, values: Any) -> int:
    return _format_letters(text, text.count("%"), values, each_once=not isinstance(values, Mapping))


def _brace_letters(text: str, *values: Any, **named: Any) -> int:
    return _format_letters(text.replace("{{", "").replace("}}", ""), text.count("{"), (values, named), each_once=False)


def _format_letters(text: str, fields: int, values: Any, *, each_once: bool) -> int:
    if _WIDTH.search(text):
        raise TemplateTooLong("the chat template formats with a width of four digits or more, or a computed width")
    return len(text) + 1500 * fields + _ESCAPED * weight(values) * (1 if each_once else fields)


def _replaced_letters(text: Any, old: Any, new: Any, count: Any = None) -> int:
    text, old, new = map(str, (text, old, new))
    return len(text) + (text.count(old) if old else len(text) + 1) * len(new)


def _joined_letters(between: Any, parts: Any) -> int:
    parts = parts if isinstance(parts, (str, dict, *_LISTS)) else list(parts)
    return weight(parts) + len(parts) * weight(between)


def _indented_letters(text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> int:
    lines = 1 + len(str(text).splitlines())
    return weight(text) + lines * (width if isinstance(width, int) else weight(width))


def _wrapped_letters(
    text: Any, width: int = 79, break_long_words: bool = True, wrapstring: Any = None, break_on_hyphens: bool = True
) -> int:
    return weight(text) * (1 + weight(wrapstring or "\n"))


def _json_letters(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> int:
    """Of at most 100 levels, each line has at most the indentation of all."""
    letters = weight(value)
    step = 0 if indent is None else indent if isinstance(indent, int) else weight(indent)
    return letters * (_ESCAPED + _MAX_DEPTH * max(step, 0) // 4 if step > 16 else _ESCAPED) + letters * weight(
        separators or ""
    )


def _no_start(values: Any, attribute: Any = None, start: Any = 0) -> int:
    if not isinstance(start, int | float):
        raise TemplateTooLong("the chat template adds lists; only numbers can be added here")
    return 0


Foretell = Callable[..., int]
#: Methods of texts, lists and mappings that a template may call -> how many letters they make, where that may be more
#: than a few times what they are given.
METHODS: dict[str, Foretell | None] = {
    **dict.fromkeys((
        "capitalize", "casefold", "center", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii",
        "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper",
        "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "rfind", "rindex", "rjust",
        "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
        "zfill", "get", "items", "keys", "values", "copy", "cycle", "changed",
    )),
    "replace": _replaced_letters, "expandtabs": lambda text, tabsize=8: len(text) + text.count("\t") * max(tabsize, 0),
    "join": _joined_letters, "format": _brace_letters,
    "format_map": lambda text, values: _brace_letters(text, values),
}  # fmt: skip
FILTERS: dict[str, Foretell] = {
    "replace": _replaced_letters, "indent": _indented_letters, "wordwrap": _wrapped_letters, "sum": _no_start,
    "tojson": _json_letters,
    "urlize": lambda text, *more, **named: weight(text) * (20 + weight(more) + weight(named)),
    "join": lambda parts, d="", attribute=None: _joined_letters(d, parts),
    "format": lambda text, *values, **named: _percent_letters(str(text), named or values),
}  # fmt: skip
#: Filters that are written in Python or search in ways that are not linear; nobody gives them a long text.
SLOW_FILTERS = frozenset({"pprint", "urlize", "striptags", "wordwrap", "xmlattr", "truncate"})
MAX_FOR_SLOW = 1 << 16
