"""Reads YAML of another framework as values with address and line, and imports or builds nothing that it names.

It accepts more than recipes do: tags are ignored, merge keys are followed, `yes` and `True` are booleans. It accepts
less than PyYAML: bytes, depth and the number of values are limited, and a duplicate key is an error.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import yaml

from nemo_vfm.core.errors import UserError

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_VALUES = 5000
_MIN_SECRET = 6  # characters; a shorter text stands in too many places that are none of its business
Plain: TypeAlias = bool | int | float | str | None
Value: TypeAlias = Plain | tuple[Plain, ...]
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_INT = re.compile(r"[-+]?(?:0|[1-9][\d_]{0,30})")  # what begins with 0 is octal to some readers: a text here
_FLOAT = re.compile(r"[-+]?(?:\d[\d_]{0,30}\.?\d{0,30}|\.\d{1,30})(?:[eE][-+]?\d{1,3})?")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_SECRET = re.compile(
    r"(?:.*_)?(?:(?:api|access|private|secret)_?key|token|secret|passw(?:or)?d|passphrase|credentials?|dsn)",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"://[^/\s:@]*:[^/\s@]+@")  # user:password@ of a URL
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Key:
    """One value of a file."""

    path: str  #: its dotted address; an element of a list has its number
    value: Value  #: a single value, or the single values of a list
    line: int
    secret: bool = False  #: whether the value is nobody's business
    is_mapping: bool = False  #: whether it is an empty mapping, whose value is that of an empty list


@dataclass(slots=True)
class _Node:
    """A value while it is read: a single one, a list, or a mapping."""

    body: "Plain | list[_Node] | dict[str, _Node]"
    line: int


def read_keys(text: str, name: str) -> tuple[Key, ...]:
    """Every value of a YAML document, in order, references to one another followed."""
    if len(text) > MAX_BYTES:
        raise UserError(f"{name} has more than {MAX_BYTES} characters; a file to migrate has fewer")
    try:
        root = _ForeignReader(text, name).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise UserError(f"{where} is not valid YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(root.body, dict):
        raise UserError(
            f"{name} holds no mapping (lines of `key: value`), so it is not a configuration that is known here"
        )
    keys: list[Key] = []
    for key in _flat(root, ""):
        keys.append(key)
        if len(keys) > MAX_VALUES:
            raise UserError(f"{name} expands to more than {MAX_VALUES} values; a file to migrate has fewer")
    # `${a.b}` replaced by the single value at that address, where there is one.
    values, followed = {key.path: key.value for key in keys}, list[Key]()
    for key in keys:
        value = key.value
        for _ in range(10):  # a chain that is longer, or a loop, stays as it is
            match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if match is None or match[1] not in values:
                break
            value = values[match[1]]
        followed.append(replace(key, value=value))
    named = {text for key in followed if _is_secret(key) for text in _texts(key.value) if len(text) >= _MIN_SECRET}
    # A secret stays one where an alias or a reference brings it under another name.
    return tuple(
        replace(key, secret=_is_secret(key) or any(secret in text for text in _texts(key.value) for secret in named))
        for key in followed
    )


class _ForeignReader:
    """Turns the parser's events into nodes; it recurses at most MAX_DEPTH deep."""

    def __init__(self, text: str, name: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._name, self._anchors = name, dict[str, _Node]()

    def document(self) -> _Node:
        next(self._events)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise UserError(f"{self._name} is empty")
        node = self._node(next(self._events), 0)
        next(self._events)
        if not isinstance(next(self._events), yaml.StreamEndEvent):
            raise UserError(f"{self._name} holds several YAML documents; migrate them one by one")
        return node

    def _node(self, event: Any, depth: int) -> _Node:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise UserError(f"{self._name}:{line}: *{event.anchor} refers to nothing above it, or to itself")
            return self._anchors[event.anchor]
        if depth > MAX_DEPTH:
            raise UserError(f"{self._name}:{line}: values are nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(scalar_value(event.value) if event.implicit[0] else str(event.value), line)
        elif isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
                items.append(self._node(item, depth + 1))
            node = _Node(items, line)
        else:
            found: dict[str, _Node] = {}
            merged: dict[str, _Node] = {}
            while not isinstance(item := next(self._events), yaml.MappingEndEvent):
                key, below = self._node(item, depth + 1), self._node(next(self._events), depth + 1)
                if isinstance(key.body, list | dict):
                    raise UserError(f"{self._name}:{key.line}: a key is a single value")
                if key.body == "<<":  # a mapping, or a list of them of which the first goes before the others
                    for part in reversed(below.body) if isinstance(below.body, list) else [below]:
                        merged |= part.body if isinstance(part.body, dict) else {}
                elif str(key.body) in found:
                    raise UserError(
                        f"{self._name}:{key.line}: {key.body} is given twice in one mapping; keep one of them"
                    )
                else:
                    found[str(key.body)] = below
            found = merged | found
            named = found.get("__fn_or_cls__")
            if named is not None and isinstance(named.body, dict) and {"module", "name"} <= named.body.keys():
                # Fiddle's own spelling of a class, `__fn_or_cls__: {module, name}`.
                words = _Node(f"{named.body['module'].body}.{named.body['name'].body}", named.line)
                found = {"_target_": words} | {key: one for key, one in found.items() if key != "__fn_or_cls__"}
            node = _Node(found, line)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node


def scalar_value(text: str) -> Plain:
    """What an unquoted text means to the frameworks that these files are for; `5e-6` is a number to them."""
    if text in ("", "~") or text.lower() == "null":
        return None
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if not _FLOAT.fullmatch(text) or re.fullmatch(r"[-+]?0\d+", text):
        return text
    number = float(text.replace("_", ""))
    return number if math.isfinite(number) else text


def _flat(node: _Node, path: str) -> Iterator[Key]:
    if isinstance(node.body, dict) and node.body:
        for key, below in node.body.items():
            yield from _flat(below, f"{path}.{key}" if path else key)
    elif isinstance(node.body, list) and any(isinstance(item.body, list | dict) for item in node.body):
        for index, below in enumerate(node.body):
            yield from _flat(below, f"{path}.{index}" if path else str(index))
    elif isinstance(node.body, list):
        values = tuple(item.body for item in node.body if not isinstance(item.body, list | dict))
        yield Key(path, values, node.line)
    else:
        is_mapping = isinstance(node.body, dict)
        yield Key(path, node.body if not isinstance(node.body, dict) else (), node.line, is_mapping=is_mapping)


def _is_secret(key: Key) -> bool:
    """By its name, or as the login of an address; a switch such as `use_end_token: true` is no secret."""
    if any(_LOGIN.search(text) for text in _texts(key.value)):
        return True
    named = _SECRET.fullmatch(key.path.rpartition(".")[2]) is not None
    return named and key.value is not None and not isinstance(key.value, bool)


def _texts(value: Value) -> list[str]:
    return [part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, str)]
