# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A checked recipe in, objects out; what a constructor objects to is said at its place in the file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nemo_vfm.config.errors import Mark, Problem, RecipeError
from nemo_vfm.config.locate import Target


@dataclass(frozen=True, slots=True)
class Value:
    """A finished value."""

    value: object


@dataclass(frozen=True, slots=True)
class Group:
    """A mapping of names to parts."""

    parts: "dict[str, Part]"


@dataclass(frozen=True, slots=True)
class Items:
    """A list of parts, and the type that holds them."""

    parts: "tuple[Part, ...]"
    kind: Callable[[Sequence[object]], object]


@dataclass(frozen=True, slots=True)
class Call:
    """A component: what to call with which arguments.

    Args:
        secrets: values from the environment below it, which no message may show.
        later: True in a factory slot: the rest of the arguments come when the factory is called.
    """

    target: Target
    arguments: "dict[str, Part]"
    path: str
    mark: Mark
    secrets: tuple[str, ...] = field(default=(), repr=False)
    later: bool = False


Part: TypeAlias = Value | Group | Items | Call


class BoundFactory:
    """A component of a factory slot: its own arguments from the recipe, the others when it is called.

    Whatever stands below it in the recipe is made anew at each call, inside the caller's device and dtype contexts.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make one."""
        return _call(self._call, args, kwargs)

    def __repr__(self) -> str:
        return f"Factory({self._call.target.__qualname__} at {self._call.path})"


def make(part: Part) -> Any:
    """The object that a part stands for.

    Raises:
        RecipeError: a constructor refused its arguments with a ValueError.
    """
    if isinstance(part, Value):
        return part.value
    if isinstance(part, Group):
        return {name: make(below) for name, below in part.parts.items()}
    if isinstance(part, Items):
        return part.kind([make(below) for below in part.parts])
    return BoundFactory(part) if part.later else _call(part, (), {})


def _call(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    arguments = {name: make(below) for name, below in call.arguments.items()}
    try:
        return call.target(*args, **arguments, **kwargs)
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError([Problem(call.path, call.mark, _masked(str(error), call.secrets))]) from error


def _masked(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***") if len(secret) > 3 else text
    return text
