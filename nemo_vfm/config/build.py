"""Builds the objects of a checked recipe; an error of a constructor is shown at its place in the file."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from traceback import walk_tb
from typing import Any, TypeAlias

from nemo_vfm.config.locate import Target
from nemo_vfm.config.recipe_errors import Mark, Problem, RecipeError
from nemo_vfm.config.tree import Map, Scalar, join, mark_at
from nemo_vfm.core.optional import IDLE_PARTS, Need, needed_packages
from nemo_vfm.core.storage.uri import BACKENDS, Address
from nemo_vfm.core.types.component import PartRefused

#: The keys of a component's positional arguments, and of one that becomes a `functools.partial`.
ARGS, PARTIAL = "_args_", "_partial_"

_MAX_MESSAGE = 4000  # characters shown of a constructor's message, and searched for secrets


@dataclass(frozen=True, slots=True)
class Value:
    """A value that needs no building."""

    value: object
    #: where it is written; None if no recipe gives it
    node: Scalar | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Group:
    """A mapping of parts; keys are text, or of the type that the argument's annotation gives its keys."""

    parts: "dict[Any, Part]"


@dataclass(frozen=True, slots=True)
class Items:
    """A sequence of parts."""

    parts: "tuple[Part, ...]"
    kind: Callable[[Sequence[object]], object]  #: makes the sequence, such as `tuple`


@dataclass(frozen=True, slots=True)
class Call:
    """A component: what to call with which arguments."""

    target: Target
    arguments: "dict[str, Part]"
    path: str  #: the dotted key where it is used
    mark: Mark
    #: values from the environment below it, which no message may show
    secrets: tuple[str, ...] = field(default=(), repr=False)
    is_factory: bool = False  #: in a factory slot: the other arguments come when the factory is called
    node: Map | None = field(default=None, repr=False)  #: where its arguments are written
    is_partial: bool = False  #: to be a `functools.partial` instead of what the target returns

    @property
    def home(self) -> str:
        """The dotted key where it is written, to which several `${...}` may refer; empty for the root."""
        return "" if self.node is None else self.node.home


Part: TypeAlias = Value | Group | Items | Call


class BoundFactory:
    """A component of a factory slot: some arguments come from the recipe, the others when it is called.

    Components below it in the recipe are built anew at each call, inside the caller's device and dtype contexts. A
    component elsewhere to which it refers by `${...}` is built once and shared.

    Args:
        made: those shared components, by the key where they are written.
    """

    def __init__(self, call: Call, made: Mapping[str, object] | None = None) -> None:
        self.call, self._made = call, made or {}

    @property
    def target(self) -> object:
        """The class or function that it calls."""
        return self.call.target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build one; RecipeError as from `make`."""
        own = frozenset().union(*map(_homes, self.call.arguments.values()))
        return _call(self.call, args, kwargs, _Builder(own.union(self._made), dict(self._made)))

    def error(self, text: str) -> RecipeError:
        """What to raise where something is wrong with it, at its place in the recipe."""
        return _refusal(self.call, text)

    def __repr__(self) -> str:
        return f"Factory({self.call.target.__qualname__} at {self.call.path})"


def make(part: Part) -> Any:
    """Build the object of a part; a component to which several places refer is built once.

    Raises:
        RecipeError: a constructor refused its arguments with a ValueError, or could not take them (TypeError).
    """
    return _Builder(_homes(part)).make(part)


@dataclass(slots=True)
class _Builder:
    """Builds each component once, by the key where it is written."""

    shared: frozenset[str]  #: keys of the components that are below no factory
    made: dict[str, Any] = field(default_factory=dict)  #: those built so far, by key

    def make(self, part: Part) -> Any:
        if isinstance(part, Value):
            return part.value
        if isinstance(part, Group):
            return {name: self.make(below) for name, below in part.parts.items()}
        if isinstance(part, Items):
            return part.kind([self.make(below) for below in part.parts])
        if part.is_factory:
            return BoundFactory(part, {one.home: self.make(one) for one in self._elsewhere(part, part.home)})
        if not part.home:
            return _call(part, (), {}, self)
        if part.home not in self.made:
            self.made[part.home] = _call(part, (), {}, self)
        return self.made[part.home]

    def _elsewhere(self, part: Part, home: str) -> Iterator[Call]:
        """The shared components that a factory refers to outside itself."""
        for _, one in _children(part):
            if isinstance(one, Call) and one.home in self.shared and not f"{one.home}.".startswith(f"{home}."):
                yield one
            else:
                yield from self._elsewhere(one, home)


def walk_parts(part: Part, path: str = "") -> Iterator[tuple[str, Part]]:
    """Yield every part with its dotted key, each before those below it."""
    yield path, part
    for name, below in _children(part):
        yield from walk_parts(below, join(path, name))


def _homes(part: Part) -> frozenset[str]:
    """The keys of the components that are below no factory."""
    if isinstance(part, Call) and part.is_factory:
        return frozenset()
    own = [part.home] if isinstance(part, Call) and part.home else []
    return frozenset(own).union(*(_homes(one) for _, one in _children(part)))


def needs(part: Part, path: str = "") -> Iterator[tuple[str, Need]]:
    """Yield (dotted key, need) for what every component, and every URL of an object store, needs."""
    if isinstance(part, Value):
        if isinstance(part.value, Address) and (module := BACKENDS.get(part.value.scheme)):
            yield path, Need((module,))
        return
    if isinstance(part, Call):
        given = {name: below.value for name, below in part.arguments.items() if isinstance(below, Value)}
        yield from ((path, need) for need in needed_packages(part.target, given))
    idle = isinstance(part, Call) and getattr(part.target, IDLE_PARTS, False)
    for name, below in _children(part):
        yield from ((at, need) for at, need in needs(below, join(path, name)) if not (idle and need.gpu))


def _children(part: Part) -> list[tuple[str, Part]]:
    """(name, part) of each part directly below."""
    if isinstance(part, Call):
        return list(part.arguments.items())
    if isinstance(part, Group):
        return [(str(key), one) for key, one in part.parts.items()]
    return [(str(number), one) for number, one in enumerate(part.parts)] if isinstance(part, Items) else []


def _call(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], builder: _Builder) -> Any:
    arguments = {name: builder.make(below) for name, below in call.arguments.items()}
    by_position = arguments.pop(ARGS, ())
    if call.is_partial:
        return partial(call.target, *by_position, **arguments)
    try:
        return call.target(*args, *by_position, **arguments, **kwargs)
    except RecipeError:
        raise
    except ValueError as error:
        address = error.address if isinstance(error, PartRefused) else ()
        raise _refusal(call, str(error), address) from (None if call.secrets else error)
    except Exception as error:
        if call.secrets:  # its own text, and a traceback's, may quote them
            raise _refusal(call, f"{type(error).__name__}: {error}") from None
        # The call itself or the body of the constructor raised it, rather than something deep inside.
        if isinstance(error, TypeError) and len(list(walk_tb(error.__traceback__))) <= 2:
            raise _refusal(call, f"{call.target.__qualname__} cannot take these arguments: {error}") from error
        where = f"{call.path or 'the root'} of the recipe"
        error.add_note(f"This happened while {where} was being built, {call.mark.place()}.")
        raise


def _refusal(call: Call, text: str, address: Sequence[str] = ()) -> RecipeError:
    """The error at the argument that `text` is about: one that it names, or the only one whose number it shows."""
    if not address:
        given = () if call.node is None else [name for name in call.node.items if name in call.arguments]
        at = {
            name: found.start() for name in given if (found := re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text))
        }
        if not at:
            shown = set(re.findall(r"-?\d[\w.+-]*(?<![.])", text))
            for name in given:
                values = [one.value for _, one in walk_parts(call.arguments[name]) if isinstance(one, Value)]
                if any(isinstance(value, int | float) and str(value) in shown for value in values):
                    at[name] = 0
            at = at if len(at) == 1 else {}
        # Of several names, the one written nearest to the user: 0 on the command line, 1 in the recipe, more below.
        sources = {} if call.node is None else {name: call.node.key_mark(name).source for name in at}
        far = {name: source.is_file + len(source.included_from()) for name, source in sources.items()}
        chosen = min(at, key=lambda name: (far[name], at[name]), default=None)
        address = () if chosen is None else (chosen,)
    mark = mark_at(call.node, call.mark, address)
    return RecipeError([Problem(join(call.path, *address), mark, mask_secrets(text[:_MAX_MESSAGE], call.secrets))])


def mask_secrets(text: str, secrets: Sequence[str]) -> str:
    """The text without secrets, also where it shows only a part of one: any run of six characters is hidden."""
    for secret in secrets:
        if len(secret) > 3:  # hiding every "1" would make the message unreadable, and hides nothing
            width = min(len(secret), 6)
            pieces, start = [], 0
            while start < len(text):
                end = start + width
                while end <= len(text) and text[start:end] in secret:
                    end += 1
                found = end > start + width
                pieces.append("***" if found else text[start])
                start = end - 1 if found else start + 1
            text = "".join(pieces)
    return text
