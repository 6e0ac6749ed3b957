"""Tests that no two folders import each other, nor files in a circle: late imports and those for types count, too."""

import ast
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.repository import ROOT, nodes, python_files


@cache
def _imports() -> dict[Path, set[Path]]:
    """Of each file of the package, the files of ours that it imports anywhere."""
    files = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path for path in python_files("nemo_vfm")
    }
    files |= {name.removesuffix(".__init__"): path for name, path in files.items() if name.endswith(".__init__")}
    found: dict[Path, set[Path]] = defaultdict(set)
    for path in set(files.values()):
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nemo_vfm"):
                named = {files.get(f"{node.module}.{alias.name}") for alias in node.names} - {None}
                found[path] |= {one for one in named or {files.get(node.module)} if one is not None} - {path}
    return found


def _folder(path: Path) -> str:
    return path.parent.relative_to(ROOT / "nemo_vfm").as_posix()


def test_no_two_folders_import_each_other():
    edges = {(_folder(path), _folder(other)) for path, others in _imports().items() for other in others}
    pairs = {(one, other) for one, other in edges if one < other and (other, one) in edges}
    assert not pairs, f"these folders import each other; move what both need below them: {sorted(pairs)}"


def test_no_files_import_each_other_in_a_circle():
    try:
        TopologicalSorter(_imports()).prepare()
    except CycleError as error:
        circle = [path.relative_to(ROOT / "nemo_vfm").as_posix() for path in error.args[1]]
        pytest.fail(f"these files import each other: {circle}")
