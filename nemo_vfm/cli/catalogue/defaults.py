"""Adds every constructor's defaults to a composed tree, each with its place in the code."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

from nemo_vfm.cli.catalogue.components import is_component
from nemo_vfm.cli.catalogue.constructor_arguments import describe, node_of
from nemo_vfm.config import Mark, SourceText, hints
from nemo_vfm.config.locate import NotLocated, Target, locate
from nemo_vfm.config.tree import Map, Node, Scalar, Seq
from nemo_vfm.core.types.job import Job


@dataclass(slots=True)
class Filler:
    """Adds what constructors take where a recipe says nothing."""

    trust: Sequence[str]  #: whose constructors may be looked at; looking means importing
    left_out: dict[str, str] = field(default_factory=dict)  #: classes that were not looked at, with the reason

    def recipe(self, root: Map, reserved: Sequence[str]) -> Map:
        """A whole recipe; the keys of every recipe stay at its end."""
        tree = self.node(root.without(*reserved), Job)
        assert isinstance(tree, Map)
        return replace(tree, items={**tree.items, **{key: root.items[key] for key in reserved if key in root.items}})

    def node(self, node: Node, hint: Any, num_given: int | None = 0) -> Node:
        """A node of a slot."""
        hint = hints.bare_hint(hint)
        if hints.is_factory(hint):
            given, made = hints.factory_parts(hint)
            return self.node(node, made, None if given is None else len(given))
        options = [option for option in _options(hint) if get_args(option)]
        if isinstance(node, Seq):
            inner = next((get_args(option)[0] for option in options if hints.is_list(option)), None)
            return replace(node, items=tuple(self.node(item, inner) for item in node.items))
        if not isinstance(node, Map):
            return node
        if target := self._target(node, hint):
            return self._component(node, target, num_given)
        inner = next((get_args(option)[1] for option in options if hints.is_mapping(option)), None)
        return replace(node, items={key: self.node(below, inner) for key, below in node.items.items()})

    def _target(self, node: Map, hint: Any) -> Target | None:
        name = node.target()
        if name is None:
            plain = [o for o in _options(hint) if inspect.isclass(o) and hints.is_component(o) and is_component(o)]
            grouped = any(hints.is_mapping(option) for option in _options(hint)) or hints.is_open(hint)
            return plain[0] if len(plain) == 1 and not grouped else None
        try:
            return locate(name, self.trust)
        except NotLocated as error:
            self.left_out[name] = str(error)
            return None

    def _component(self, node: Map, target: Target, num_given: int | None) -> Map:
        try:
            arguments = describe(target, num_given)
        except TypeError as error:
            self.left_out[target.__qualname__] = str(error)
            return node
        hints_by_name = {argument.name: argument.hint for argument in arguments}
        items = {key: self.node(below, hints_by_name.get(key, object)) for key, below in node.items.items()}
        for argument in arguments:
            if argument.name not in items and not argument.required and not argument.given:
                default = node_of(argument.default)
                if default is not None:
                    items[argument.name] = _with_mark(default, place_of(target, argument.name))
        return replace(node, items=items)


def place_of(target: Target, name: str) -> Mark:
    """Where an argument's default is written: the file below its package's folder, and the line."""
    # A function, a constructor, or the fields of a dataclass and its parents.
    holders: list[Any] = [] if inspect.isclass(target) else [inspect.unwrap(target)]
    for kind in target.__mro__ if inspect.isclass(target) else ():
        own: Callable[..., object] | None = vars(kind).get("__init__")
        if "__dataclass_fields__" in vars(kind):
            holders.append(kind)
        elif inspect.isfunction(own):
            holders.append(inspect.unwrap(own))
    for holder in holders:
        lines = _lines(holder)
        if name in lines:
            # `torch/optim/adamw.py`: the folder that packages are installed in says nothing and may hold a user's name.
            file = Path(inspect.getsourcefile(holder) or "?")
            depth = len(holder.__module__.split(".")) + (file.name == "__init__.py")
            return Mark(SourceText(str(Path(*file.parts[-depth:])), ()), lines[name])
    return Mark(SourceText(f"default of {target.__qualname__}", (), is_file=False))


def _options(hint: Any) -> list[Any]:
    hint = hints.bare_hint(hint)
    return [hints.bare_hint(option) for option in get_args(hint)] if hints.is_union(hint) else [hint]


def _with_mark(node: Node, mark: Mark) -> Node:
    if isinstance(node, Map):
        return Map({key: _with_mark(below, mark) for key, below in node.items.items()}, mark)
    if isinstance(node, Scalar):
        return replace(node, mark=mark)
    return Seq(tuple(_with_mark(item, mark) for item in node.items), mark)


@cache
def _lines(holder: Any) -> dict[str, int]:
    """`{name: line}`; empty where the source is not there."""
    try:
        source, first = inspect.getsourcelines(holder)
    except (OSError, TypeError):
        return {}
    (tree,) = ast.parse(textwrap.dedent("".join(source))).body
    named: list[tuple[str, int]] = []
    if isinstance(tree, ast.ClassDef):
        named = [(ast.unparse(node.target), node.lineno) for node in tree.body if isinstance(node, ast.AnnAssign)]
    elif isinstance(tree, ast.FunctionDef):
        arguments = (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)
        named = [(argument.arg, argument.lineno) for argument in arguments]
    return {name: first + line - 1 for name, line in named}
