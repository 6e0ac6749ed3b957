"""Show how two launches differ: recipe, cluster, size, code, packages."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.state.launch_folder import KeptLaunch

_Row = tuple[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which two."""
    parser.add_argument("a", metavar="A", type=Path, help="a run folder")
    parser.add_argument("b", metavar="B", type=Path, help="another")


def run(arguments: argparse.Namespace) -> int:
    """0, whether they differ or not."""
    from launcher.columns import say, table
    from launcher.state.launch_folder import read

    a, b = read(arguments.a), read(arguments.b)
    same = True
    for title, rows in (("recipe", _recipes(a, b)), ("cluster and size", _clusters(a, b)),
                        ("code", _code(a, b)), ("packages", _packages(a, b))):  # fmt: skip
        if found := list(rows):
            same = False
            say(title)
            table(found, indent=2)
    if same:
        say("recipe, cluster, size, code and packages are the same")
    return 0


def _recipes(a: "KeptLaunch", b: "KeptLaunch") -> Iterator[_Row]:
    """Run by run, where both are sweeps."""
    if not (a.runs and b.runs):
        yield from _files(a.recipe_file, b.recipe_file)
    for name in dict.fromkeys((*a.runs, *b.runs)):
        if name in a.runs and name in b.runs:
            yield from ((f"{name}: {key}", text) for key, text in _files(a.recipe_of(name), b.recipe_of(name)))
        else:
            yield name, "only in A" if name in a.runs else "only in B"


def _files(one: Path, other: Path) -> Iterator[_Row]:
    from nemo_vfm.config import read_values

    yield from _pairs(*(read_values(file.read_text(), str(file)) for file in (one, other)))


def _clusters(a: "KeptLaunch", b: "KeptLaunch") -> Iterator[_Row]:
    yield from _pairs({"cluster": a.values["cluster"]}, {"cluster": b.values["cluster"]})
    names = ("nodes", "tasks_per_node", "gpus_per_node", "array")
    one, other = ({job["name"]: {name: job[name] for name in names} for job in kept.jobs} for kept in (a, b))
    yield from _pairs(one, other)
    options = ("trust", "allow", "allow_host", "rank_silence", "rank_timeout", "profile")
    yield from _pairs(*({"words": {name: found for name in options if (found := kept.values["words"].get(name))}}
                        for kept in (a, b)))  # fmt: skip


def _code(a: "KeptLaunch", b: "KeptLaunch") -> Iterator[_Row]:
    from launcher.state.snapshot import read_listing

    if a.values["code"]["commit"] != b.values["code"]["commit"]:
        yield "commit", f"{a.values['code']['commit']} -> {b.values['code']['commit']}"
    one, other = (read_listing((kept.folder / "code.sha256").read_text()) for kept in (a, b))
    for path in sorted({*one, *other}):
        if one.get(path) != other.get(path):
            yield path, "changed" if path in one and path in other else "only in A" if path in one else "only in B"


def _packages(a: "KeptLaunch", b: "KeptLaunch") -> Iterator[_Row]:
    one, other = ({name: version for name, _, version in (line.partition("==") for line in
                   (kept.folder / "packages.txt").read_text().splitlines())} for kept in (a, b))  # fmt: skip
    for name in sorted({*one, *other}, key=str.lower):
        if one.get(name) != other.get(name):
            yield name, f"{one.get(name, 'nothing')} -> {other.get(name, 'nothing')}"


def _pairs(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[_Row]:
    from nemo_vfm.config.difference import differences

    for key, (old, new) in differences(one, other).items():
        yield key, f"{old} -> {new}"
