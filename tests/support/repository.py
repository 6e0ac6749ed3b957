"""Lists the repository's files, syntax trees, imports and recipes for the house tests."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
#: Folders whose Python is ours, present or not yet.
CODE = ("nemo_vfm", "launcher")
ALL_PYTHON = (*CODE, "tests", "benchmarks")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml: 20 times faster, same values


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """Every Python file under these folders of the repository (and `setup.py` where all are asked for)."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(files + ([ROOT / "setup.py"] if folders == ALL_PYTHON else []))


@cache
def yaml_files(folder: str) -> tuple[Path, ...]:
    """Every recipe or ingredient under a folder of the repository."""
    return tuple(sorted((ROOT / folder).rglob("*.yaml")))


@cache
def text_files() -> tuple[Path, ...]:
    """Every text file that belongs to the repository."""
    suffixes = ("*.py", "*.yaml", "*.md", "*.toml", "*.txt", "*.svg", "*.html", "*.css", "*.js", "*.j2", "*.yml")
    folders = [ROOT / name for name in (*ALL_PYTHON, "conf", "recipes", "docs", ".ci", ".github")]
    nested = [path for folder in folders for suffix in suffixes for path in folder.rglob(suffix)]
    rooted = [path for path in ROOT.iterdir() if path.is_file() and path.name not in (".git",)]
    return tuple(sorted({*nested, *rooted, ROOT / ".ci" / "run"}))


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree: to walk those of all files takes a second, and many tests do."""
    return tuple(ast.walk(tree(path)))


def where(path: Path, node: ast.AST | None = None) -> str:
    """file:line of a finding, relative to the repository."""
    line = f":{node.lineno}" if node is not None and hasattr(node, "lineno") else ""
    return f"{path.relative_to(ROOT)}{line}"


def module_name(path: Path) -> str:
    """`nemo_vfm/core/log.py` -> `nemo_vfm.core.log`; a package's `__init__.py` gives the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def dotted(node: ast.AST) -> str:
    """The dotted name an expression spells, such as `torch.cuda.is_available`; empty where it is something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (front := dotted(node.value)):
        return f"{front}.{node.attr}"
    return ""


@cache
def imports(path: Path) -> tuple[tuple[str, ast.AST], ...]:
    """(dotted name, node) of everything a file imports, at the top or late; `from a import b` gives `a.b`."""
    found: list[tuple[str, ast.AST]] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found += ((f"{node.module}.{alias.name}", node) for alias in node.names)
    return tuple(found)


@cache
def targets() -> dict[str, str]:
    """Each dotted name that any `_target_` in `conf/` and `recipes/` spells, and one file that spells it."""
    found: dict[str, str] = {}
    for path in (*yaml_files("conf"), *yaml_files("recipes")):
        for name in _targets_in(load_yaml(path)):
            found.setdefault(name, str(path.relative_to(ROOT)))
    return found


def load_yaml(path: Path) -> object:
    """The plain values of a recipe or ingredient; None where it cannot be read, which a test of its own reports."""
    try:
        return _LOADER(path.read_text(encoding="utf-8")).get_single_data()
    except yaml.YAMLError:
        return None


def _targets_in(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(name := node.get("_target_"), str) and name != "???":
            yield name
        for value in node.values():
            yield from _targets_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets_in(value)
