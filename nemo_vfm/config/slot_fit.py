# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the trusted class or function that `_target_` names, and checks that it fits the type of its slot."""

import inspect
import sys
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from nemo_vfm.config import hints
from nemo_vfm.config.locate import NotLocated, Target, is_trusted, is_users, locate
from nemo_vfm.config.tree import TARGET, Map, Node, Scalar, child
from nemo_vfm.core.types.job import Job


def chosen(
    written: Node | None, hint: Any, trust: Sequence[str], *, is_root: bool = False, is_partial: bool = False
) -> Target:
    """The trusted class or function that makes what a slot asks for.

    Args:
        written: the node behind `_target_`; None where there is none, then the slot's own class is taken.
        hint: the slot's annotation.
        is_root: the slot is the recipe itself.
        is_partial: it is called later, by the class whose slot this is.

    Raises:
        NotLocated: there is none, it is not trusted, or it makes something else.
    """
    if written is None:
        return _own_class(hint, trust, is_root)
    if not isinstance(written, Scalar) or not isinstance(written.value, str):
        raise NotLocated(f"{TARGET} is the dotted name of a class")
    if written.secret:  # whoever sets the environment would choose the code, and a message would show the value
        raise NotLocated(f"{TARGET} is written in the recipe; it cannot come from the environment")
    target = locate(written.value, trust)
    says_nothing = is_partial or hints.is_open(hint) or hints.is_open(hints.returns(target))
    is_users_function = not inspect.isclass(target) and is_users(target, written.value, trust)
    if is_root or not (is_users_function and says_nothing):  # whoever trusts a function knows what it makes
        _require_fit(target, hint, is_root)
    return target


def takes_values_only(root: Map, address: str, trust: Sequence[str]) -> bool:
    """Whether an argument takes plain values and no component; False where no trusted class says what it takes."""
    try:
        hint = _hint_at(root, address, trust)
    except (NotLocated, TypeError, KeyError):
        return False
    return all(hints.is_open(one) or not _takes_mappings(one) for one in _alternatives(hint))


def may_take(root: Map, address: str, name: str | None, trust: Sequence[str]) -> bool:
    """Whether an argument takes what the class of this name makes; True where nobody says what it takes or makes."""
    try:
        return name is None or hints.fits(hints.returns(locate(name, trust)), _hint_at(root, address, trust))
    except (NotLocated, TypeError, KeyError):
        return True


def _hint_at(root: Map, address: str, trust: Sequence[str]) -> Any:
    node: Node | None = root
    hint: Any = Job
    for key in address.split("."):
        hint = _hint_below(node, hint, key, trust)
        node = None if node is None else child(node, key)
    return hint


def _hint_below(node: Node | None, hint: Any, key: str, trust: Sequence[str]) -> Any:
    """The annotation of a key of what stands in a slot, or may stand there."""
    options = _alternatives(hint)
    if name := node.target() if isinstance(node, Map) else None:
        return hints.signature(locate(name, trust)).arguments[key].hint
    if group := next(filter(hints.is_mapping, options), None):
        return (*get_args(group), hints.ANYTHING, hints.ANYTHING)[1]
    made = [hints.factory_parts(one)[1] if hints.is_factory(one) else one for one in options]
    kind = next(filter(hints.is_component, made), hints.ANYTHING)
    return hints.signature(_own_class(kind, trust, is_root=False)).arguments[key].hint


def _alternatives(hint: Any) -> list[Any]:
    inner = hints.bare(hint)
    return [hints.bare(one) for one in hints.options(inner)] if hints.is_union(inner) else [inner]


def _takes_mappings(hint: Any) -> bool:
    return hints.is_factory(hint) or hints.is_mapping(hint) or hints.is_list(hint) or hints.is_component(hint)


def _own_class(hint: Any, trust: Sequence[str], is_root: bool) -> Target:
    """The class of the annotation, where it can be made and is trusted as if its name had been written."""
    if inspect.isclass(hint) and not (hints.is_protocol(hint) or inspect.isabstract(hint)) and is_trusted(hint, trust):
        kind: Target = hint
        return kind
    words = "a job" if is_root else hints.in_words(hint)
    raise NotLocated(f"{TARGET} is missing: name the class that makes {words}")


def _makes_components(made: Any) -> bool:
    """Whether a function's result is an object of somebody's class rather than a value or a container of values."""
    origin = get_origin(made) or made
    is_class = hints.is_component(origin) and not hints.is_mapping(origin) and not hints.is_list(origin)
    return is_class and str(origin.__module__).partition(".")[0] not in {*sys.stdlib_module_names, "numpy"}


def _require_fit(target: Target, hint: Any, is_root: bool) -> None:
    name, made = target.__qualname__, hints.returns(target)
    if hints.is_protocol(target) or inspect.isabstract(target):
        raise NotLocated(f"{name} is an interface; name a class that implements it")
    if inspect.isfunction(target) and not hints.is_open(made) and not _makes_components(made):
        # A text has a method `split` and a path has `open`: either would pass for a component with such a method.
        raise NotLocated(f"{name} is a function that makes {hints.in_words(made)}, not a component")
    if hints.is_open(made) or not hints.fits(made, hint):
        words = "a Job, which the root of a recipe is" if is_root else hints.in_words(hint)
        without, other = hints.lacking(made, hint), hints.differing(made, hint)
        why = f": its {other[0]} takes other arguments" if other else ""
        raise NotLocated(f"{name} is not {words}" + (f": it has no {', '.join(without)}" if without else why))
