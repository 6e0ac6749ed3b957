"""Marks the functions that a recipe may name and the classes that it may not; defines how one refuses a part.

Whatever stands behind `_target_` is called with a stranger's arguments. So a class of ours may be named where its
constructor opens nothing, and a function of ours only where it is marked. A house test looks at both, and whether a
recipe, an ingredient or the docs name every class that a slot takes: else nobody would know of it.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])

_MARK = "_recipes_may_name"


def component(target: T) -> T:
    """Mark a function, or a class whose constructor reads: it only builds, from the files that its arguments name."""
    setattr(target, _MARK, True)
    return target


def no_component(kind: T) -> T:
    """Mark a class whose constructor opens a file, a connection or a process, or that only our own code builds."""
    setattr(kind, _MARK, False)
    return kind


def may_be_named(target: Callable[..., Any]) -> bool:
    """Whether a class or function of ours may stand behind `_target_`."""
    return bool(getattr(target, _MARK, inspect.isclass(target)))


class PartRefused(ValueError):
    """A constructor refuses something that lies inside one of its arguments; without a recipe a plain ValueError.

    Args:
        message: what is wrong, as for any ValueError.
        address: the keys that lead there from the constructor's arguments, such as `rules`, `static`.
    """

    def __init__(self, message: str, *address: str) -> None:
        super().__init__(message)
        self.address = address
