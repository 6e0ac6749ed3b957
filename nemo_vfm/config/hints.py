"""Reads the annotations of a class's or function's arguments, and describes an annotation in words."""

import inspect
import sys
import types
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import InitVar, dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from nemo_vfm.config.locate import Target, is_ours
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.frame_count import LatentFrames, PixelFrames
from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.types.factory import Factory

T = TypeVar("T")
ANYTHING: Any = Any
_UNRESOLVED = (NameError, TypeError, AttributeError, SyntaxError, ImportError)
#: Numbers with a unit, which they parse from a text.
PARSED = (Duration, PixelFrames, LatentFrames)
_VALUES = (int, float, str, bool, bytes, complex, PurePath, Enum, *PARSED, type(None))
_WORDS: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null",
    Duration: "a duration such as '400 steps'",
    PixelFrames: "a number such as '5 pixel frames'",
    LatentFrames: "a number such as '2 latent frames'",
    Address: "a URL such as s3://bucket/folder",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a component."""

    name: str
    #: its annotation, resolved; without one the type of a plain default, else `Any`. Of a class that is not ours, one
    #: that is no type counts as none, and a default of None allows null.
    hint: Any
    required: bool  #: it has no default
    positional: bool  #: it may be given by position


@dataclass(frozen=True, slots=True)
class Signature:
    """What a component can be given."""

    arguments: dict[str, Argument]  #: by name, in order
    open: bool  #: it takes keywords of any name, as some third-party classes do; then unknown keys cannot be seen
    takes_more: bool  #: it takes any number of arguments by position (`*args`)
    permitted: tuple[str, ...] = ()  #: the arguments that take what the user allows; no recipe can give them


@cache  # a recipe has many components of a class, and each is looked at several times
def signature(target: Target) -> Signature:
    """Read the constructor of a class, or a function.

    Raises:
        TypeError: its arguments cannot be read, or annotations of ours cannot be resolved; the text says which.
    """
    if is_typeddict(target):
        hints, required = get_type_hints(target, include_extras=True), target.__required_keys__  # type: ignore[attr-defined]
        arguments = {}
        for name, hint in hints.items():
            if get_origin(hint) in (Required, NotRequired):  # of texts Python sees no `NotRequired` itself
                arguments[name] = Argument(name, get_args(hint)[0], get_origin(hint) is Required, False)
            else:
                arguments[name] = Argument(name, hint, name in required, False)
        return Signature(arguments, False, False)
    try:
        parameters = inspect.signature(target).parameters
    except (ValueError, TypeError) as error:
        raise TypeError(f"the arguments of {target.__qualname__} cannot be read") from error
    hints = _hints(target)
    arguments = {}
    # The type of a plain default without an annotation: `flag=True` must not take the text "False", which is true.
    # A default of 1 is often meant as 1.0.
    plain: dict[Any, Any] = {bool: bool, int: int | float, float: float, str: str}
    for name, p in parameters.items():
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        unsaid = plain.get(type(p.default), ANYTHING) if p.annotation is p.empty else ANYTHING
        hint = hints.get(name, unsaid)
        hint = hint | None if p.default is None and not (is_ours(target) or is_open(bare_hint(hint))) else hint
        arguments[name] = Argument(name, hint, p.default is p.empty, p.kind is not p.KEYWORD_ONLY)
    kinds = {p.kind for p in parameters.values()}
    permitted = tuple(name for name, argument in arguments.items() if bare_hint(argument.hint) is Permissions)
    return Signature(
        {name: argument for name, argument in arguments.items() if name not in permitted},
        inspect.Parameter.VAR_KEYWORD in kinds, inspect.Parameter.VAR_POSITIONAL in kinds, permitted,
    )  # fmt: skip


@cache
def returns(target: Target) -> Any:
    """What calling the target gives: the class itself, or a function's return annotation."""
    made = target if inspect.isclass(target) else _hints(target).get("return", ANYTHING)
    return getattr(target, "__self__", ANYTHING) if made is Self else made


def _hints(target: Target) -> dict[str, Any]:
    source = target
    if inspect.isclass(target) and "_fields" not in vars(target):  # a named tuple's __new__ does not know its module
        source = target.__new__ if target.__init__ is object.__init__ else target.__init__
    try:
        found = get_type_hints(source, include_extras=True)
    except _UNRESOLVED as error:
        if target.__module__.partition(".")[0] in ("torch", "lightning"):
            return {}  # checked loosely: names only
        if is_ours(target):
            raise TypeError(f"the annotations of {target.__qualname__} cannot be resolved: {error}") from error
        found = resolved_alone(source, target)
    if not is_ours(target):  # others write modules and functions for types, which Python lets pass
        plain = {name: bare_hint(hint) for name, hint in found.items()}
        found = {
            name: found[name] for name, one in plain.items()
            if inspect.isclass(one) or get_origin(one) is not None or isinstance(one, InitVar) or is_open(one)
            or one is Self
        }  # fmt: skip
    return {name: hint.type if isinstance(hint, InitVar) else hint for name, hint in found.items()}


def resolved_alone(source: Any, target: Target) -> dict[str, Any]:
    """Those annotations that can be resolved, such as of a module whose other imports only a type checker sees."""
    names = getattr(inspect.unwrap(source), "__globals__", vars(sys.modules[target.__module__]))
    found: dict[str, Any] = {}
    for name, annotation in getattr(source, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        with suppress(*_UNRESOLVED):
            found |= get_type_hints(alone, names, include_extras=True)
    return found


def bare_hint(hint: Any) -> Any:
    """The annotation that `Annotated`, `NewType` and named aliases stand for."""
    return _unwrap(hint)[0]


def notes(hint: Any) -> tuple[Any, ...]:
    """What `Annotated` says besides the type, such as limits."""
    return _unwrap(hint)[1]


def said(hint: Any, kind: type[T]) -> T | None:
    """What `Annotated` says of this kind, here or of a part such as the `X` of `X | None`; None where nothing."""
    inner, found = _unwrap(hint)
    own = [one for one in found if isinstance(one, kind)]
    return next((one for one in (*own, *(said(part, kind) for part in get_args(inner))) if one is not None), None)


def options(hint: Any) -> tuple[Any, ...]:
    """What a union allows, each with what `Annotated` says of all of them."""
    return tuple(Annotated[(option, *notes(hint))] if notes(hint) else option for option in get_args(bare_hint(hint)))


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    metadata: tuple[Any, ...] = ()
    while True:
        if hasattr(hint, "__metadata__"):
            hint, metadata = get_args(hint)[0], (*get_args(hint)[1:], *metadata)
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif hasattr(hint, "__value__"):
            hint = hint.__value__
        else:
            return hint, metadata


def is_union(hint: Any) -> bool:
    """`A | B` or `Optional[A]`."""
    return get_origin(hint) in (Union, types.UnionType)


def is_factory(hint: Any) -> bool:
    """`Factory[[A], B]`."""
    return hint is Factory or get_origin(hint) is Factory


def factory_parts(hint: Any) -> tuple[tuple[Any, ...] | None, Any]:
    """What a factory will be given, None where the annotation leaves it open, and what it makes."""
    arguments = get_args(hint)
    if len(arguments) != 2:
        return None, ANYTHING
    given, made = arguments
    return (tuple(given) if isinstance(given, list | tuple) else None), made


def is_mapping(hint: Any) -> bool:
    """`Mapping[str, X]` or `dict[str, X]`; a typed dictionary is a component, since it says what its keys are."""
    origin = get_origin(hint) or hint
    return inspect.isclass(origin) and issubclass(origin, Mapping) and not is_typeddict(origin)


def is_list(hint: Any) -> bool:
    """A sequence or set of values; a text is not one, and a named tuple is a component."""
    origin = get_origin(hint) or hint
    if not inspect.isclass(origin) or hasattr(origin, "_fields"):
        return False
    return origin in (Sequence, Collection, Iterable, Set) or issubclass(origin, (list, tuple, set, frozenset))


def is_fixed(hint: Any) -> bool:
    """`tuple[A, B]`, which says how many values there are."""
    return get_origin(hint) is tuple and get_args(hint)[-1:] != (Ellipsis,)


def is_component(hint: Any) -> bool:
    """A class or protocol that a mapping with `_target_` fills; not a plain value."""
    origin = get_origin(hint) or hint
    return inspect.isclass(origin) and origin is not object and not issubclass(origin, _VALUES)


def choices(hint: Any) -> list[str]:
    """What may be written for a `Literal`, an `Enum` or a union that holds one; empty for anything else."""
    hint = bare_hint(hint)
    if is_union(hint):
        return [choice for option in get_args(hint) for choice in choices(option)]
    if get_origin(hint) is Literal:
        return ["null" if option is None else str(option) for option in get_args(hint)]
    return [str(one.value) for one in hint] if inspect.isclass(hint) and issubclass(hint, Enum) else []


def is_open(hint: Any) -> bool:
    """An annotation that says nothing: `Any`, `object`, a type variable, none at all."""
    return hint is ANYTHING or hint is object or hint is inspect.Parameter.empty or isinstance(hint, TypeVar)


def is_protocol(hint: Any) -> bool:
    """A protocol: fitted by having its methods, never built."""
    return bool(getattr(get_origin(hint) or hint, "_is_protocol", False))


def in_words(hint: Any) -> str:
    """What an annotation asks for, for a message."""
    hint = bare_hint(hint)
    if is_union(hint):
        alone = " or ".join(in_words(option) for option in get_args(hint) if not is_list(bare_hint(option)))
        words = [in_words(option) for option in get_args(hint)]
        words = ["a list of them" if alone and one == f"a list, each {alone}" else one for one in words]
        return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    if known := choices(hint):
        return f"one of {', '.join(known)}"
    if is_factory(hint):
        return f"a component that builds {in_words(factory_parts(hint)[1])}"
    if is_mapping(hint):
        return f"a mapping of names to {in_words((*get_args(hint), ANYTHING, ANYTHING)[1])}"
    if is_list(hint):
        parts = get_args(hint)
        if is_fixed(hint) and len(parts) > 1 and len(set(parts)) == 1:
            return f"a list of {len(parts)}, each {in_words(parts[0])}"
        if is_fixed(hint):
            return f"a list of {len(parts)} ({', '.join(map(in_words, parts))})" if parts else "an empty list"
        return f"a list, each {in_words(parts[0])}" if parts else "a list"
    origin = get_origin(hint) or hint
    if inspect.isclass(origin) and issubclass(origin, PurePath):
        return "a path"
    if origin in _WORDS or is_open(hint):
        return _WORDS.get(origin, "a value")
    name = str(getattr(origin, "__name__", origin))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
