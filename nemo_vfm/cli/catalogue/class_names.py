"""Finds the names of classes that a recipe may use in source files and YAML, without importing anything."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from nemo_vfm.config.locate import DEFAULT_TRUST
from nemo_vfm.config.overlay import SLOT as OVERLAY
from nemo_vfm.config.roots import Roots

_PACKAGE = Path(__file__).resolve().parents[2]
_TARGET = re.compile(r"""_target_["']?:\s*["']?([A-Za-z_]\w*(?:\.\w+)+)""")
#: Folders of `conf/` that the launcher alone reads: no recipe takes an ingredient of them.
_LAUNCHERS = ("cluster", "container")
_NO_COMPONENTS = ("cli", "config", "explain", "runtime")
_SLOW = ("lightning", "pytorch_lightning", "megatron")
#: What stands in the first column is of the module itself. Syntax trees of all files would take 2 s more.
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_IMPORT = re.compile(r"^(?:import ([\w.]+)|from ([\w.]+) import (\([^)]*\)|.*))", re.MULTILINE)
_NAME = re.compile(r"\w+")


@cache
def own_classes() -> tuple[str, ...]:
    """Dotted names of our public classes, but for modules that import a slow package, themselves or through ours.

    Components never do, importing one takes some 5 s, and neither `explain` nor an editor's schema should wait for it.
    """
    needs = {module: set(_imported(text)) for module, text in _own_texts().items()}
    slow = set(_SLOW)
    while more := {module for module, names in needs.items() if module not in slow and names & slow}:
        slow |= more
    return tuple(name for name in _all_own_classes() if name.rpartition(".")[0] not in slow)


@cache
def _all_own_classes() -> tuple[str, ...]:
    """Those of slow modules, too."""
    return tuple(
        f"{module}.{name}"
        for module, text in _own_texts().items()
        for name in _CLASS.findall(text)
        if not name.startswith("_")
    )


@cache
def _own_texts() -> dict[str, str]:
    return {module: file.read_text(encoding="utf-8") for module, file in _own_modules()}


def _own_modules() -> Iterator[tuple[str, Path]]:
    for file in sorted(_PACKAGE.rglob("*.py")):
        place = file.parent if file.name == "__init__.py" else file.with_suffix("")
        parts = place.relative_to(_PACKAGE).parts
        if parts and parts[0] not in _NO_COMPONENTS and not parts[-1].startswith("_"):
            yield ".".join((_PACKAGE.name, *parts)), file


def _imported(text: str) -> Iterator[str]:
    """The modules that are imported where a file begins; of another package its name alone."""
    for plain, module, names in _IMPORT.findall(text):
        for name in (plain, module, *(f"{module}.{name}" for name in _NAME.findall(names))):
            yield name if name.startswith(f"{_PACKAGE.name}.") else name.partition(".")[0]


def named_in(roots: Roots) -> list[str]:
    """Every class that an ingredient or a recipe names, ours and the user's, in order of first use."""
    names = (match[1] for file in _yaml_files(roots) for match in _TARGET.finditer(_text(file)))
    return list(dict.fromkeys(names))


def ingredients_of(roots: Roots, name: str) -> dict[str, list[str]]:
    """`{slot: choices}` of the ingredients whose root is the class `name`."""
    found: dict[str, list[str]] = {}
    for slot in slots_of(roots):
        for choice in roots.choices(slot):
            file = roots.ingredient(slot, choice)
            if file and (match := re.search(rf"^{_TARGET.pattern}", _text(file), re.MULTILINE)) and match[1] == name:
                found.setdefault(slot, []).append(choice)
    return found


def slots_of(roots: Roots) -> list[str]:
    """The folders of ingredients that a recipe may take."""
    folders = [folder for root in roots.conf if root.is_dir() for folder in sorted(root.iterdir()) if folder.is_dir()]
    return list(dict.fromkeys(folder.name for folder in folders if folder.name not in (OVERLAY, *_LAUNCHERS)))


def full_names(short: str, roots: Roots) -> list[str]:
    """The dotted names that a short name may mean; what some recipe or ingredient names goes before other classes."""
    found = sorted(name for name in everything(roots) if name.rpartition(".")[2] == short)
    return [name for name in found if name in named_in(roots)] or found


def everything(roots: Roots) -> list[str]:
    """Every name that a short name is looked for among."""
    trusted = [entry for entry in DEFAULT_TRUST if not entry.endswith(".")]
    return list(dict.fromkeys([*_all_own_classes(), *named_in(roots), *trusted]))


def _yaml_files(roots: Roots) -> Iterator[Path]:
    """Of recipes and ingredients. Overlays count too: they name classes of ours."""
    for root in (*roots.conf, *roots.recipes):
        for file in sorted(root.rglob("*.yaml")) if root.is_dir() else ():
            if root not in roots.conf or file.relative_to(root).parts[0] not in _LAUNCHERS:
                yield file


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")
