"""Lists the paths that a recipe reads and that do not exist, except those that the run itself will make."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath

from nemo_vfm.config import Composed, NamedPath, Problem
from nemo_vfm.config.recipe_errors import did_you_mean
from nemo_vfm.config.tree import Map
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.uri import Address

#: Arguments that name what is written, or kept for the next start and made where it is not there.
WRITTEN = frozenset(("copy_to", "index", "counts"))
#: The same of one component only.
WRITTEN_BY = frozenset((("nemo_vfm.data.shards.shard_cache.ShardCache", "folder"),))
_NEIGHBOURS = 1000  # names of a folder among which the one that was meant is looked for


@dataclass(frozen=True, slots=True)
class PathsSeen:
    """What became of a recipe's paths."""

    problems: list[Problem] = field(default_factory=list)  #: a path that is not there, or cannot be read
    unseen: list[str] = field(default_factory=list)  #: a sentence for each that was not looked at


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
    composed: Composed, named: Sequence[NamedPath], mounts: Mapping[PurePosixPath, Path] | None = None
) -> PathsSeen:
    """Look at every path that a recipe reads.

    Args:
        named: those of the recipe.
        mounts: see `mounts_of`.
    """
    found, reported = PathsSeen(), set[str]()
    for one in named:
        if one.argument in WRITTEN or (one.owner, one.argument) in WRITTEN_BY or str(one.place) in reported:
            continue
        reported.add(str(one.place))
        if why := _why_not(one, mounts):
            found.unseen.append(f"not looked at: {_shown(one)} ({one.key}), {why}")
        elif text := _wrong(composed, one, _here(Path(one.place), mounts)):
            found.problems.append(Problem(one.key, one.mark, text))
    return found


def _why_not(one: NamedPath, mounts: Mapping[PurePosixPath, Path] | None) -> str:
    if isinstance(one.place, Address):
        return "which is in an object store"
    if not one.owner.startswith("nemo_vfm."):
        return f"since {one.owner} may read or create it"
    if mounts is not None and _here(Path(one.place), mounts) is None:
        return "which only the container has"
    return ""


def _here(path: Path, mounts: Mapping[PurePosixPath, Path] | None) -> Path | None:
    """A path of the recipe as a path of this machine; None where it is in no folder that a container mounts."""
    whole = Path.cwd() / path
    if mounts is None:
        return whole
    inside = max((folder for folder in mounts if whole.is_relative_to(folder)), key=lambda one: len(one.parts),
                 default=None)  # fmt: skip
    return None if inside is None else mounts[inside] / whole.relative_to(inside)


def _shown(one: NamedPath) -> str:
    return "a path from the environment" if one.secret else str(one.place)


def _wrong(composed: Composed, one: NamedPath, path: Path | None) -> str:
    """What is wrong with it; empty where it is there, or will be once it is read."""
    assert path is not None
    if "{" in path.name:  # tars by number
        path = path.parent
    try:
        is_folder = path.is_dir() if path.exists() else None
        if is_folder and not any(os.scandir(path)):
            return "" if _maker(composed, one) is not None else f"{_shown(one)} is an empty folder"
    except OSError as error:
        return f"{_shown(one)} cannot be accessed: {error.strerror}"
    if is_folder is None:
        head, _, rest = one.key.partition(".")
        made, own = _maker(composed, one), (rest.partition(".")[0] if head == "steps" else "")
        if made is not None:
            steps = _steps(composed)
            if own not in steps or made not in steps or steps.index(made) <= steps.index(own):
                return ""
            return f"{_shown(one)} is created by step {made}, which comes after {own}"
        if one.secret:
            return f"nothing exists at {_shown(one)}"
        relative = "" if Path(one.place).is_absolute() else f" (relative paths begin in {Path.cwd()})"
        return f"there is no {one.place} on this machine{relative}{_meant(path)}"
    return "" if os.access(path, os.R_OK) else f"{_shown(one)} cannot be read: you have no permission"


def _maker(composed: Composed, one: NamedPath) -> str | None:
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


def _steps(composed: Composed) -> list[str]:
    node = composed.root.items.get("steps")
    return list(node.items) if isinstance(node, Map) else []


def _meant(path: Path) -> str:
    """Which part of it is not there, and which name is nearly the same."""
    first = next(one for one in (*reversed(path.parents), path) if not one.exists())
    instead = did_you_mean(first.name, _names(first.parent))
    return instead if first == path else f": {first.parent} holds no {first.name}{instead}"


def _names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from [entry.name for entry in islice(entries, _NEIGHBOURS)]
    except OSError:
        return
