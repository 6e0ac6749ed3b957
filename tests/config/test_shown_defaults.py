"""Tests that `show --defaults` shows every value that a recipe's objects are built with."""

import ast
import inspect
import textwrap
from collections.abc import Iterator

import pytest

from nemo_vfm.cli.catalogue.components import Catalogue, catalogue
from nemo_vfm.cli.catalogue.constructor_arguments import ABSENT, describe, node_of
from nemo_vfm.cli.catalogue.defaults import Filler
from nemo_vfm.config import compose, hints
from nemo_vfm.config.build import Call, Part, _children
from nemo_vfm.config.compose import RESERVED
from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.locate import DEFAULT_TRUST
from nemo_vfm.config.recipe_check import Checker
from nemo_vfm.config.roots import Roots
from tests.support.repository import ROOT

RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
LENT = {"params"}  # what a training gives to its optimizer


@pytest.fixture(scope="module")
def known() -> Catalogue:
    return catalogue(Roots.standard(()), DEFAULT_TRUST)


def calls(part: Part) -> Iterator[Call]:
    """Every component of a checked recipe."""
    if isinstance(part, Call):
        yield part
    for below in _children(part):
        yield from calls(below)


def unshown(recipe: object) -> list[str]:
    """The arguments of a recipe's components that have no value in it, once the defaults are added."""
    whole = Filler(DEFAULT_TRUST).recipe(resolve(compose(str(recipe)).root, keep_env=True)[0], RESERVED)
    checker = Checker(DEFAULT_TRUST)
    part = checker.root(whole.without(*RESERVED))
    assert [problem.message for problem in checker.problems if problem.kind != "missing"] == []
    return [
        f"{call.path}.{argument.name}"
        for call in calls(part)
        for argument in hints.signature(call.target).arguments.values()
        if call.node is not None and argument.name not in {*call.node.items, *LENT}
    ]


def test_no_argument_of_a_shipped_recipe_lacks_a_value_and_what_is_shown_could_be_run() -> None:
    assert RECIPES
    assert {recipe.name: found for recipe in RECIPES if (found := unshown(recipe))} == {}


def test_every_default_of_every_component_can_be_written_in_a_recipe(known: Catalogue) -> None:
    ours = [name for name in known.all_components() if name.startswith("nemo_vfm.")]
    assert len(ours) > 100
    assert [
        f"{name}.{argument.name}"
        for name in ours
        for argument in describe(known.known[name])
        if not argument.required and argument.default is not ABSENT and node_of(argument.default) is None
    ] == []


def test_no_constructor_builds_a_component_with_values_that_no_recipe_shows(known: Catalogue) -> None:
    kinds = {target for name in known.all_components() if inspect.isclass(target := known.known[name])}
    assert [f"{kind.__qualname__}: {text}" for kind in sorted(kinds, key=str) for text in hidden(kind, kinds)] == []


def hidden(kind: type, kinds: set[type]) -> list[str]:
    """The calls without arguments of other components in the bodies of a class's constructor."""
    written = [vars(kind).get(name) for name in ("__init__", "__post_init__")] if ours(kind) else []
    return [
        ast.unparse(node)
        for function in written
        if inspect.isfunction(function) and function.__code__.co_filename != "<string>"  # a dataclass's own
        for line in ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body
        for node in ast.walk(line)
        if isinstance(node, ast.Call) and not node.args and not node.keywords and isinstance(node.func, ast.Name)
        and function.__globals__.get(node.func.id) in kinds
    ]  # fmt: skip


def ours(kind: type) -> bool:
    return kind.__module__.startswith("nemo_vfm.")
