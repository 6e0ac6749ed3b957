# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that the constructor of every class that a recipe can name is its schema."""

import collections.abc
import importlib
import inspect
import typing
from functools import cache

import pytest

from tests.support.repository import CODE, ROOT, module_name, python_files, targets

#: Rooms whose public classes may be asked for by a recipe.
COMPONENT_ROOMS = ("curate", "synth", "text", "train", "recsys", "evaluate", "models", "data", "diffusion",
                   "language", "metrics", "dedup", "report", "nemo", "workflow", "asking")  # fmt: skip


def resolve(name: str) -> object:
    """The class or function behind a dotted name."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@cache
def ours_in_recipes() -> dict[str, str]:
    """`_target_` -> recipe, for those of our own package; torch and Lightning answer for theirs."""
    return {name: file for name, file in targets().items() if name.split(".")[0] in CODE}


@cache
def public_classes() -> dict[str, type]:
    """Dotted name -> class, for every public class defined in a room of components."""
    found: dict[str, type] = {}
    for path in python_files("nemo_vfm"):
        room = path.relative_to(ROOT).parts[1].removesuffix(".py")
        if room not in COMPONENT_ROOMS or "megatron" in path.relative_to(ROOT).parts:
            continue
        module = importlib.import_module(module_name(path))
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_"):
                found[f"{module.__name__}.{name}"] = value
    return found


def constructor(component: object) -> typing.Callable[..., object]:
    """What is called to build it."""
    return component.__init__ if inspect.isclass(component) else component


def loose(hint: object) -> str:
    """Why an annotation cannot be checked, or an empty text: Any or a bare Callable, wherever inside it."""
    if hint is typing.Any:
        return "Any"
    if hint in (typing.Callable, collections.abc.Callable, object):
        return "a bare Callable" if hint is not object else "object"
    return next((reason for part in typing.get_args(hint) if (reason := loose_part(part))), "")


def loose_part(part: object) -> str:
    """`loose`, also through the argument lists that `Factory[[Params], Model]` holds."""
    if isinstance(part, list | tuple):
        return next((reason for inner in part if (reason := loose(inner))), "")
    return loose(part)


def test_recipes_name_components_of_ours():
    assert len(ours_in_recipes()) >= 5


@pytest.mark.parametrize("name", sorted(targets()))
def test_every_target_exists(name):
    assert callable(resolve(name)), f"{name} in {targets()[name]} is nothing that can be built"


@pytest.mark.parametrize("name", sorted(ours_in_recipes()))
def test_a_component_is_its_constructor(name):
    component = resolve(name)
    hints = typing.get_type_hints(constructor(component))
    problems = []
    for parameter in inspect.signature(component).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            problems.append(f"{parameter}: a key that nobody reads is a lie the user believes")
        elif parameter.name not in hints:
            problems.append(f"{parameter.name} has no annotation")
        elif reason := loose(hints[parameter.name]):
            problems.append(f"{parameter.name}: {reason} cannot be checked before the run")
    assert not problems, f"{name}: " + "; ".join(problems)


@pytest.mark.parametrize("name", sorted(ours_in_recipes()))
def test_a_component_documents_each_argument(name):
    component = resolve(name)
    text = f"{inspect.getdoc(component) or ''}\n{inspect.getdoc(constructor(component)) or ''}"
    missing = [p for p in inspect.signature(component).parameters if p not in text]
    assert not missing, f"the docstring of {name} is the help; it does not speak of {missing}"


def test_type_hints_of_every_public_constructor_resolve():
    assert len(public_classes()) > 20
    broken = {}
    for name, component in public_classes().items():
        try:
            typing.get_type_hints(component.__init__)
        except Exception as error:
            broken[name] = f"{type(error).__name__}: {error}"
    assert not broken, broken


def test_no_public_constructor_swallows_unknown_keys():
    greedy = []
    for name, component in public_classes().items():
        if getattr(component, "_is_protocol", False):
            continue
        own = vars(component).get("__init__")
        if own and any(p.kind is p.VAR_KEYWORD for p in inspect.signature(own).parameters.values()):
            greedy.append(name)
    assert not greedy, f"**kwargs on: {greedy}"


def parts(hint: object) -> set[object]:
    """A hint and everything inside it."""
    inner = [part for arg in typing.get_args(hint) for part in (arg if isinstance(arg, list | tuple) else [arg])]
    return {hint if isinstance(hint, collections.abc.Hashable) else str(hint)}.union(*map(parts, inner))


def test_slot_protocols_have_methods_only():
    slots = set()
    for component in public_classes().values():
        for hint in typing.get_type_hints(component.__init__).values():
            slots |= {part for part in parts(hint) if getattr(part, "_is_protocol", False)}
    assert len(slots) > 3
    with_data = [slot for slot in slots if vars(slot).get("__annotations__")]
    assert not with_data, f"a protocol says what is asked, never what is: {with_data}"


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (typing.Any, "Any"),
        (dict[str, typing.Any], "Any"),
        (typing.Callable, "a bare Callable"),
        (collections.abc.Callable | None, "a bare Callable"),
        (int | None, ""),
        (collections.abc.Mapping[str, float], ""),
        (typing.Literal["a"], ""),
    ],
)
def test_a_loose_slot_is_seen(hint, reason):
    assert loose(hint) == reason
