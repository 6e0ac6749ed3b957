"""Decides which modules a recipe's check may import: installed ones, and from the repository those the user trusts.

The repository of the working directory may be a stranger's. So neither it nor the working directory is searched. A
package there is imported only where `--trust` names it. Then the modules beside it that it imports are found as well,
after everything that is installed.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

OWN = Path(__file__).resolve().parents[2]
_OURS = ("nemo_vfm", "launcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Where a check finds modules."""

    path: tuple[str, ...]  #: for `sys.path`
    named: Mapping[str, str]  #: packages that are taken from one folder, whatever the path holds: name -> folder
    trusted: tuple[str, ...] = ()  #: those of them that are the repository's
    #: folders of the repository that hold the latter, below its root: `src` in such a layout.
    sources: tuple[str, ...] = ()
    #: those that are trusted, and are in the repository and installed elsewhere as well: name -> where.
    passed_over: Mapping[str, str]


def modules(trust: Sequence[str], tree: Path | None) -> Modules:
    """What a check may import.

    Args:
        trust: words of `--trust`: packages, modules or classes.
        tree: root of the repository, or of its copy; None where there is none.
    """
    kept = [entry for entry in sys.path if not _is_local(entry, tree)]
    folders = [str(folder) for folder in (tree, tree / "src") if folder.is_dir()] if tree is not None else []
    named_by_user = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # `launcher` itself may have left some out
    folders += [entry for entry in (*sys.path, *named_by_user) if entry not in kept and Path(entry).is_absolute()]
    found, passed_over = {}, {}
    for name in dict.fromkeys(word.partition(".")[0] for word in trust):
        local = next((folder for folder in folders if PathFinder.find_spec(name, [folder])), None)
        # Apart from the repository; one that is installed as a link to it is not.
        installed = next((place for place in _places(name, kept)
                          if not _is_inside(place, tree) or Path(place).is_relative_to(sys.prefix)), None)  # fmt: skip
        if local is not None and installed is not None and name not in _OURS:  # ours is trusted without a word
            passed_over[name] = installed
        elif local is not None:
            found[name] = local
    trusted = {name: folder for name, folder in found.items() if _is_inside(folder, tree)}
    sources = {os.path.relpath(folder, tree) for folder in trusted.values()} - {"."}
    return Modules(path=(*kept, *dict.fromkeys(found.values())), named={**dict.fromkeys(_OURS, str(OWN)), **found},
                   trusted=tuple(trusted), sources=tuple(sorted(sources)), passed_over=passed_over)  # fmt: skip


def job_imports(found: Modules, tree: Path | None) -> bool:
    """Whether a job imports from its copy of the repository: what is trusted there, or the nemo_vfm that submits."""
    return bool(found.trusted) or is_own(tree)


def is_own(tree: Path | None) -> bool:
    """Whether a repository is the checkout that this launcher runs from."""
    return tree is not None and tree.resolve() == OWN


def _is_local(entry: str, tree: Path | None) -> bool:
    """Whether an entry of a search path is the working directory, or lies in the repository; an environment may."""
    path = Path(entry)
    if not path.is_absolute() or path.resolve() == Path.cwd().resolve():
        return True
    return _is_inside(entry, tree) and not any(path.is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix))


def _is_inside(path: str, tree: Path | None) -> bool:
    return tree is not None and Path(path).resolve().is_relative_to(tree.resolve())


def _places(name: str, path: Sequence[str]) -> Iterator[str]:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = (
            PathFinder.find_spec(name, list(path)) if finder is PathFinder else find(name, None) if find else None
        )
        if spec is not None and spec.origin not in (None, "built-in", "frozen"):
            yield os.fspath(str(spec.origin))
        elif spec is not None and spec.submodule_search_locations:
            yield from spec.submodule_search_locations
