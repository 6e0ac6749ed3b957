"""Finds by the syntax trees which packages a class reaches: by `require`, in itself and in what it refers to.

A reference is a name that stands for a definition of ours, in the same module or imported from another. An annotation
and the classes that `isinstance` is asked about are none: they make nothing.
"""

import ast
from collections.abc import Iterator
from functools import cache

from tests.support.repository import dotted, module_name, python_files, tree

Place = tuple[str, str]  #: (module, name of a definition at its top)
_FILES = {module_name(path): path for path in python_files("nemo_vfm")}


def reached(name: str) -> set[str]:
    """Top names of the packages that a definition of ours requires, or that a module it refers to requires."""
    module, _, own = name.rpartition(".")
    found, seen, todo = set[str](), set[Place](), [(module, own)]
    while todo:
        if (place := todo.pop()) not in seen:
            seen.add(place)
            packages, references = _uses(*place)
            found |= packages
            todo += references
    return found


def is_ours(name: str) -> bool:
    """Whether a dotted name is defined at the top of a module of ours, and not merely visible there."""
    module, _, own = name.rpartition(".")
    return module in _FILES and own in _definitions(module)


@cache
def _uses(module: str, name: str) -> tuple[set[str], list[Place]]:
    """The packages that a definition requires, its module's own included, and what it refers to."""
    nodes = list(_made(_definitions(module)[name]))
    whole = [node for statement in tree(_FILES[module]).body if isinstance(statement, ast.Expr | ast.For)
             for node in ast.walk(statement)]  # fmt: skip
    known = _imported(module, tree(_FILES[module]).body) | _imported(module, nodes)
    references = {place for node in nodes if (place := _place(module, dotted(node), known))}
    return set(_required([*nodes, *whole])), sorted(references)


def _made(node: ast.AST) -> Iterator[ast.AST]:
    """Everything inside a definition but annotations and what `isinstance` is asked about."""
    yield node
    skipped: list[ast.AST | None] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        skipped = [node.returns]
    elif isinstance(node, ast.arg | ast.AnnAssign):
        skipped = [node.annotation]
    elif isinstance(node, ast.Call) and dotted(node.func) in ("isinstance", "issubclass", "cast"):
        skipped = list(node.args[1:] if dotted(node.func) != "cast" else node.args[:1])
    elif isinstance(node, ast.Attribute) and dotted(node):
        return  # as a whole
    for below in ast.iter_child_nodes(node):
        if below not in skipped:
            yield from _made(below)


def _required(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Call) and dotted(node.func) == "require" and isinstance(node.args[0], ast.Constant):
            yield node.args[0].value.partition(".")[0]


@cache
def _definitions(module: str) -> dict[str, ast.AST]:
    """Name -> the class, function or assigned value at the top of a module."""
    found: dict[str, ast.AST] = {}
    for node in tree(_FILES[module]).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update((target.id, node.value) for target in targets if isinstance(target, ast.Name))
    return found


def _imported(module: str, nodes: list[ast.AST] | list[ast.stmt]) -> dict[str, str]:
    """Name here -> dotted name elsewhere."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found.update((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)
        elif isinstance(node, ast.Import):
            found.update((one.asname or one.name, one.name) for one in node.names)
    return found


def _place(module: str, name: str, known: dict[str, str]) -> Place | None:
    """The definition that a name means in a module; None where it is nothing of ours."""
    head, _, rest = name.partition(".")
    if head not in known:
        return (module, head) if head in _definitions(module) else None
    full = f"{known[head]}.{rest}" if rest else known[head]
    parts = full.split(".")
    for length in range(len(parts) - 1, 0, -1):
        home, inside = ".".join(parts[:length]), parts[length]
        if home in _FILES:
            if inside in _definitions(home):
                return home, inside
            there = _imported(home, tree(_FILES[home]).body)
            return _place(home, ".".join(parts[length:]), there) if inside in there else None
    return None
