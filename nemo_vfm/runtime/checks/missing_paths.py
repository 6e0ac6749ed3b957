"""Lists the paths that a recipe reads and that do not exist, except those that the run itself will make."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from nemo_vfm.config import ComposedRecipe, NamedPath, Problem
from nemo_vfm.config.compose import mocked_data
from nemo_vfm.config.recipe_errors import did_you_mean
from nemo_vfm.config.recipients import COPIES
from nemo_vfm.config.tree import Map
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.uri import Address

_NEIGHBOURS = 1000  # names of a folder among which the one that was meant is looked for


def mounts_of(words: Sequence[str]) -> dict[PurePosixPath, Path] | None:
    """Folders of a container -> folders here, of `OUTSIDE:INSIDE`; None where the recipe runs in none."""
    found = {}
    for word in words:
        outside, _, inside = word.partition(":")
        if not (outside.startswith("/") and inside.startswith("/")):
            raise UserError(f"--mount takes OUTSIDE:INSIDE, two absolute paths, got {word!r}")
        found[PurePosixPath(inside)] = Path(outside)
    return found or None


def paths_seen(
    composed: ComposedRecipe, named: Sequence[NamedPath], mounts: Mapping[PurePosixPath, Path] | None = None
) -> tuple[list[Problem], list[str]]:
    """Look at every path that a recipe reads.

    Args:
        named: those of the recipe.
        mounts: see `mounts_of`.

    Returns:
        Those that are not there, or cannot be read, and a sentence for each that was not looked at.
    """
    problems, unseen, reported = list[Problem](), list[str](), set[str]()
    mocked = mocked_data(composed.root)
    for one in named:
        if one.key.startswith(mocked):
            continue
        makes = one.written is not None and not one.written.changes
        if makes or one.argument == COPIES or str(one.place) in reported:
            continue
        reported.add(str(one.place))
        if isinstance(one.place, Address):
            why = "which is in an object store"
        elif not one.owner.startswith("nemo_vfm."):
            why = f"since {one.owner} may read or create it"
        elif (path := _here(one.place, mounts)) is None:
            why = "which only the container has"
        else:
            text = _objection(composed, one, path)
            problems += [Problem(one.key, one.mark, text)] if text else []
            continue
        unseen.append(f"not looked at: {_path_text(one)} ({one.key}), {why}")
    return problems, unseen


def _here(path: Path, mounts: Mapping[PurePosixPath, Path] | None) -> Path | None:
    """A path of the recipe as a path of this machine; None where it is in no folder that a container mounts."""
    whole = Path.cwd() / path
    if mounts is None:
        return whole
    inside = max((folder for folder in mounts if whole.is_relative_to(folder)), key=lambda one: len(one.parts),
                 default=None)  # fmt: skip
    return None if inside is None else mounts[inside] / whole.relative_to(inside)


def _path_text(one: NamedPath) -> str:
    return "a path from the environment" if one.secret else str(one.place)


def _objection(composed: ComposedRecipe, one: NamedPath, path: Path) -> str:
    """What is wrong with it; empty where it is there, or will be once it is read."""
    if "{" in path.name:  # tars by number
        path = path.parent
    try:
        is_folder = path.is_dir() if path.exists() else None
        if is_folder and not any(os.scandir(path)):
            return "" if _maker(composed, one) is not None else f"{_path_text(one)} is an empty folder"
    except OSError as error:
        return f"{_path_text(one)} cannot be accessed: {error.strerror}"
    if is_folder is None:
        head, _, rest = one.key.partition(".")
        made, own = _maker(composed, one), (rest.partition(".")[0] if head == "steps" else "")
        if made is not None:
            steps = _steps(composed)
            if own not in steps or made not in steps or steps.index(made) <= steps.index(own):
                return ""
            return f"{_path_text(one)} is created by step {made}, which comes after {own}"
        if one.secret:
            return f"nothing exists at {_path_text(one)}"
        relative = "" if Path(one.place).is_absolute() else f" (relative paths begin in {Path.cwd()})"
        # Which part of it is not there, and which name is nearly the same.
        first = next(part for part in (*reversed(path.parents), path) if not part.exists())
        names: list[str] = []
        with suppress(OSError), os.scandir(first.parent) as entries:
            names += [entry.name for entry in islice(entries, _NEIGHBOURS)]
        instead = did_you_mean(first.name, names)
        instead = instead if first == path else f": {first.parent} holds no {first.name}{instead}"
        return f"there is no {one.place} on this machine{relative}{instead}"
    return "" if os.access(path, os.R_OK) else f"{_path_text(one)} cannot be read: you have no permission"


def _maker(composed: ComposedRecipe, one: NamedPath) -> str | None:
    """The step that makes it, or empty for the run itself; None where it lies outside of the run folder."""
    whole, run_dir = Path.cwd() / Path(one.place), Path.cwd() / composed.run_dir
    below = Path(os.path.normpath(whole)), Path(os.path.normpath(run_dir))
    if not below[0].is_relative_to(below[1]):
        return None
    first = below[0].relative_to(below[1]).parts[:1]
    steps = _steps(composed)
    if not steps:
        return ""
    return first[0] if first and first[0] in steps else None


def _steps(composed: ComposedRecipe) -> list[str]:
    node = composed.root.items.get("steps")
    return list(node.items) if isinstance(node, Map) else []
