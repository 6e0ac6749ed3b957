"""Tests that the constructor of every class that a recipe can name is its schema."""

import ast
import collections.abc
import importlib
import inspect
import re
import typing
from functools import cache
from pathlib import Path

import pytest

from nemo_vfm.cli.catalogue.components import catalogue
from nemo_vfm.config import Roots, trust_list
from nemo_vfm.core.network.permission import SentJson
from tests.support.repository import CODE, ROOT, module_name, nodes, python_files, targets, tree

#: Rooms whose public classes may be asked for by a recipe.
COMPONENT_ROOMS = ("curate", "synth", "text", "train", "recsys", "evaluate", "models", "data", "diffusion",
                   "language", "metrics", "dedup", "report", "nemo", "workflow", "asking")  # fmt: skip


def resolve(name: str) -> object:
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
    return component.__init__ if inspect.isclass(component) else component


def loose(hint: object) -> str:
    """Why an annotation cannot be checked, or an empty text: Any or a bare Callable, also in Factory[[here], ...]."""
    if hint == SentJson:
        return ""  # a field of somebody else's request, who takes any JSON; what is sent is checked
    if hint is typing.Any:
        return "Any"
    if hint in (typing.Callable, collections.abc.Callable, object):
        return "a bare Callable" if hint is not object else "object"
    inner = hint if isinstance(hint, list | tuple) else typing.get_args(hint)
    return next((reason for part in inner if (reason := loose(part))), "")


def test_recipes_name_components_of_ours():
    assert len(ours_in_recipes()) >= 5


@pytest.mark.parametrize("name", sorted(targets()))
def test_every_target_exists(name):
    assert callable(resolve(name)), f"{name} in {targets()[name]} is nothing that can be built"


@pytest.mark.parametrize("name", sorted(ours_in_recipes()))
def test_a_component_is_its_constructor(name):
    component = resolve(name)
    hints = typing.get_type_hints(constructor(component), include_extras=True)
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


def test_every_component_is_named_in_a_recipe_an_ingredient_or_the_docs():
    """But for those that are the kind of their slot: a recipe writes these as a mapping, without a name."""
    found = catalogue(Roots.standard(), trust_list(()))
    kinds = {f"{one.__module__}.{one.__qualname__}" for one in found.kinds() if inspect.isclass(one)}
    pages = [path for folder in ("recipes", "conf", "docs") for path in (ROOT / folder).rglob("*")
             if path.suffix in (".yaml", ".md") and path.name != "components.md"]  # fmt: skip
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in pages)))
    ours = {name for name in found.all_components() if name.split(".")[0] in CODE} - kinds
    assert len(ours) > 200 and len(pages) > 100
    assert not [name for name in sorted(ours) if name.rpartition(".")[2] not in words]


def loaded(node: ast.AST) -> list[str]:
    """The plain names that a piece of code reads."""
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]


def only_checks(statement: ast.stmt) -> bool:
    """Whether a statement refuses a value and has no other effect: an if that raises, or a call without a result."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call) and isinstance(statement.value.func, ast.Name)
    return isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Raise)


def kept_as(init: ast.FunctionDef) -> dict[str, str]:
    """Argument -> attribute, of every `self.attribute = argument`, also in a tuple."""
    kept = {}
    for one in (one for one in ast.walk(init) if isinstance(one, ast.Assign)):
        sides = (getattr(side, "elts", [side]) for side in (one.targets[0], one.value))
        for target, value in zip(*sides, strict=False):
            if isinstance(target, ast.Attribute) and isinstance(value, ast.Name):
                kept[value.id] = target.attr
    return kept


@cache
def attributes_read(path: Path) -> frozenset[str]:
    """The names of all attributes that a file reads, of whatever object."""
    found = (one for one in nodes(path) if isinstance(one, ast.Attribute))
    return frozenset(one.attr for one in found if isinstance(one.ctx, ast.Load))


def is_read(attribute: str, owner: str, path: Path) -> bool:
    """Whether the owner's file, one beside it, or one of its room that names the owner reads such an attribute."""
    if attribute in attributes_read(path):
        return True
    room = python_files("/".join(path.relative_to(ROOT).parts[:2]))
    near = [one for one in room if one.parent == path.parent or owner in one.read_text(encoding="utf-8")]
    return any(attribute in attributes_read(one) for one in near)


def ignored(path: Path) -> list[str]:
    """Keyword arguments of a file's constructors that are checked and stored at most, and that nothing reads."""
    found = []
    for owner in (one for one in tree(path).body if isinstance(one, ast.ClassDef)):
        for init in (one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"):
            kept = kept_as(init)
            used = [name for statement in init.body if not only_checks(statement) for name in loaded(statement)]
            for name in (one.arg for one in init.args.kwonlyargs):
                only_stored = name in kept and used.count(name) == 1
                if name not in loaded(init) or (only_stored and not is_read(kept[name], owner.name, path)):
                    found.append(f"{owner.name}.{name}")
    return found


def test_what_a_constructor_is_given_is_read():
    rooms = [f"nemo_vfm/{room}" for room in COMPONENT_ROOMS]
    assert not [name for path in python_files(*rooms) for name in ignored(path)]


@pytest.mark.parametrize("body", ["if deep < 1:\n            raise ValueError(deep)", "require(deep)", "pass"])
def test_an_argument_that_is_checked_and_stored_alone_is_seen(body, tmp_path, monkeypatch):
    path = tmp_path / "nemo_vfm" / "room" / "part.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"class Part:\n    def __init__(self, *, deep):\n        {body}\n        self.deep = deep\n")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert ignored(path)


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
