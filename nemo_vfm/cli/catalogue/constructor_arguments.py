"""Describes a constructor's arguments: the type in words, the default as a recipe writes it, and who gives it."""

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, is_typeddict

from nemo_vfm.config import hints
from nemo_vfm.config.emit import NOWHERE
from nemo_vfm.config.locate import Target
from nemo_vfm.config.tree import TARGET, Map, Node, Scalar, Seq

_SECTION = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*))?")


class _NoDefault:
    """Stands where there is no default; None is one."""


REQUIRED = _NoDefault()
ABSENT = _NoDefault()  #: a key of a typed dictionary that may be left out


@dataclass(frozen=True, slots=True)
class ArgumentInfo:
    """One argument."""

    name: str
    hint: Any  #: its annotation
    words: str  #: the annotation in words
    text: str  #: what the docstring says of it, units included
    default: object  #: the Python value, or REQUIRED
    given: bool = False  #: the slot's owner gives it later, so a recipe does not

    @property
    def required(self) -> bool:
        """Whether a recipe must give it."""
        return self.default is REQUIRED and not self.given


def describe(target: Target, num_given: int | None = 0) -> list[ArgumentInfo]:
    """Every argument in order; `num_given` come by position later, and None is all that can."""
    signature, texts = hints.signature(target), argument_texts(target)
    positional = [argument.name for argument in signature.arguments.values() if argument.positional]
    given = positional if num_given is None else positional[:num_given]
    defaults: dict[str, object] = dict.fromkeys(signature.arguments, ABSENT)
    if not is_typeddict(target):
        parameters = inspect.signature(target).parameters
        defaults |= {name: REQUIRED if p.default is p.empty else p.default for name, p in parameters.items()}
    for item in dataclasses.fields(target) if inspect.isclass(target) and dataclasses.is_dataclass(target) else ():
        if item.default_factory is not dataclasses.MISSING:  # it is called, as its constructor would
            defaults[item.name] = item.default_factory()
    defaults |= {a.name: REQUIRED for a in signature.arguments.values() if a.required}
    return [
        ArgumentInfo(a.name, a.hint, words(a.hint), texts.get(a.name, ""), defaults[a.name], a.name in given)
        for a in signature.arguments.values()
    ]


def words(hint: Any) -> str:
    """An annotation in words; what another package allows besides plain values is left out."""
    text = hints.in_words(hint)
    parts = [part for part in text.split(" or ") if part not in ("a Tensor",)]
    return " or ".join(dict.fromkeys(parts)) or text


def node_of(value: object) -> Node | None:
    """A default as part of a recipe; None where a recipe cannot say it."""
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return Scalar(value, NOWHERE)
    if isinstance(value, float):
        return Scalar(value, NOWHERE) if math.isfinite(value) else None
    if isinstance(value, Enum):
        return node_of(value.value)
    if isinstance(value, (PurePath, *hints.PARSED)):
        return Scalar(str(value), NOWHERE)
    if isinstance(value, list | tuple | set | frozenset):
        items = [node_of(item) for item in value]
        return Seq(tuple(item for item in items if item is not None), NOWHERE) if None not in items else None
    if isinstance(value, Mapping):
        return _map({str(key): node_of(item) for key, item in value.items()})
    return _component(value)


def _component(value: object) -> Map | None:
    """A default that is a component, such as `Precision()`: its class, and the arguments it keeps."""
    kind: Any = type(value)
    if not kind.__module__.startswith("nemo_vfm.") or isinstance(value, _NoDefault):
        return None
    try:
        names = list(hints.signature(kind).arguments)
    except TypeError:
        return None
    if not all(hasattr(value, name) for name in names):
        return None
    target: Node = Scalar(f"{kind.__module__}.{kind.__qualname__}", NOWHERE)
    return _map({TARGET: target, **{name: node_of(getattr(value, name)) for name in names}})


def _map(items: Mapping[str, Node | None]) -> Map | None:
    whole = {key: node for key, node in items.items() if node is not None}
    return Map(whole, NOWHERE) if len(whole) == len(items) else None


def summary(target: Target) -> str:
    """The first paragraph, on one line; empty where there is no docstring."""
    if inspect.isclass(target) and not vars(target).get("__doc__"):  # an inherited one speaks of another class
        return ""
    first = (inspect.getdoc(target) or "").split("\n\n")[0]
    return " ".join(first.split())


def argument_texts(target: Target) -> dict[str, str]:
    """`{argument: what the docstring says}`, of the class and of its constructor."""
    docs = [inspect.getdoc(target)]
    if inspect.isclass(target):
        docs.append(inspect.getdoc(target.__init__))
    found: dict[str, str] = {}
    for lines in (doc.splitlines() for doc in docs if doc):
        starts = [number for number, line in enumerate(lines) if _SECTION.fullmatch(line)]
        body = lines[starts[0] + 1 :] if starts else []
        depth, name = _depth(next((line for line in body if line.strip()), "")), ""
        for line in body:
            if line.strip() and _depth(line) < max(depth, 1):
                break
            if _depth(line) == depth and (entry := _ENTRY.fullmatch(line.strip())):
                name = entry[1]
                found[name] = entry[2] or ""
            elif line.strip() and name:  # one that is indented further goes on with the entry above
                found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
