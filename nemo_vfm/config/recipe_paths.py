"""Lists the files, folders and addresses that a recipe names, and checks where a run may write.

What the user types may lie anywhere except in a git repository's own folders. A run folder from a recipe, the default
`runs/NAME`, and whatever else a recipe lets a component write must lie below the working directory, or in the run
folder. No link may lead out of it, since it may have come with the recipe. Folders above the working directory are the
user's own, so a home or a scratch disk may be a link.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from nemo_vfm.config import hints
from nemo_vfm.config.build import Call, Group, Items, Part, Value
from nemo_vfm.config.recipe_errors import UNSEEN, Mark, Problem, did_you_mean, fail, shown_path, some_of
from nemo_vfm.config.tree import Scalar, join
from nemo_vfm.config.yaml_source import MAX_DEPTH
from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.core.secret import is_key
from nemo_vfm.core.storage.files import real_path
from nemo_vfm.core.storage.uri import Place
from nemo_vfm.core.storage.write_path import WriteMark
from nemo_vfm.core.types.job import DONE, RECORDS, made_by

LONGEST_NAME = 255  # bytes; every file system of ours refuses a longer one
_KEY = "run_dir"
_GIVE = "if you mean it, set it on the command line: run_dir="


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A path in a recipe."""

    key: str  #: its dotted address
    mark: Mark  #: where it is written
    place: Place  #: what it names
    owner: str  #: dotted name of the component that takes it
    argument: str  #: by which name
    secret: bool = False  #: True where it came from the environment, so that no message may show it
    written: WriteMark | None = None  #: how the component writes it, see `WritePath`


def named_paths(
    part: Part, key: str = "", owner: str = "", argument: str = "", written: WriteMark | None = None
) -> Iterator[NamedPath]:
    """All of them, in the recipe's order; of what is taken only where another is not given, those that are taken.

    The part stands at an address `key`, as the `argument` of the component `owner`.
    """
    if isinstance(part, Value):
        if isinstance(part.value, Place) and part.node is not None:
            yield NamedPath(key, part.node.mark, part.value, owner, argument, part.node.secret, written)
    elif isinstance(part, Call):
        name = f"{part.target.__module__}.{part.target.__qualname__}"
        known = hints.signature(part.target).arguments
        for called, below in part.arguments.items():
            given = part.arguments.get("path")
            is_given = isinstance(given, Value) and isinstance(given.value, Path | str)
            if not (called == "otherwise" and is_given):
                written = hints.said(known[called].hint, WriteMark) if called in known else None
                yield from named_paths(below, join(key, called), name, called, written)
    elif isinstance(part, Group | Items):
        parts = part.parts.items() if isinstance(part, Group) else enumerate(part.parts)
        for one, below in parts:
            yield from named_paths(below, join(key, str(one)), owner, argument, written)


def unmade_paths(whole: Part, run_dir: Path) -> Iterator[Problem]:
    """Each path in the folder of a step that this step does not make, where its class says what it makes."""
    for one in named_paths(whole):
        if isinstance(one.place, Path) and one.written is None:
            job: Part | None = whole
            below, step = Path(os.path.relpath(one.place, run_dir)).parts, ""
            while below and isinstance(job, Call) and isinstance(steps := job.arguments.get("steps"), Group):
                step, job, below = below[0], steps.parts.get(below[0]), below[1:]
            made = made_by(job.target) if step and isinstance(job, Call) else ()
            if made and below and not any(fnmatch(below[0], name) for name in (*made, *RECORDS, DONE)):
                instead = did_you_mean(below[0], made) or f", but {some_of(made)}"
                yield Problem(one.key, one.mark, f"step {step} makes no {below[0]}{instead}")


def run_dir_of(node: Scalar, recipe: Path) -> Path:
    """The path that `run_dir` says; a run folder's own recipe may name that folder wherever it lies."""
    try:
        path = Path(str(node.value)).expanduser()
    except RuntimeError as error:
        raise fail(f"run_dir cannot be found: {error}", node.mark, _KEY) from error
    if node.secret and is_key(str(path)):
        raise fail("a folder name must not contain a secret; this one is the value of an environment variable such as "
                   "a key", node.mark, _KEY)  # fmt: skip
    if UNSEEN.search(str(path)):
        raise fail("a path must not contain invisible characters", node.mark, _KEY)
    if (longest := max((len(part.encode()) for part in path.parts), default=0)) > LONGEST_NAME:
        raise fail(f"a folder name has at most {LONGEST_NAME} bytes; one in run_dir has {longest}", node.mark, _KEY)
    if len(path.parts) > MAX_DEPTH:  # to make folder in folder recurses
        raise fail(f"run_dir is more than {MAX_DEPTH} folders deep", node.mark, _KEY)
    if (folder := _of_git(path)) is not None:
        raise fail(f"run_dir is inside {shown_path(str(folder))}, which belongs to git; choose another folder",
                   node.mark, _KEY)  # fmt: skip
    if node.mark.source.is_typed or real_path(path) == real_path(recipe).parent:
        return path
    if path.is_absolute() or ".." in path.parts:
        raise fail("a recipe's run_dir must be below the working directory; set another on the command line: "
                   "run_dir=DIR", node.mark, _KEY)  # fmt: skip
    for part in reversed((path, *path.parents)):
        if part.is_symlink():
            raise fail(f"run_dir goes through the link {part}, which points to {shown_path(str(part))}; {_GIVE}{path}",
                       node.mark, _KEY)  # fmt: skip
    return path


def write_refusal(node: Scalar, key: str, run_dir: Path | None, permissions: Permissions) -> str:
    """Why a component may not write the path that a recipe has at `key`; empty where it may.

    `run_dir` is None where the recipe's own is refused.
    """
    path = Path(str(node.value))
    if _of_git(path) is not None:
        return "this path is inside a folder of git's own; choose another"
    if node.is_typed or is_free(path, run_dir) or permissions.may_write(path):
        return ""
    return ("a recipe may write only to its run folder and to folders below the working directory that are not "
            f"hidden; to use this path, type it ({key}=PATH) or allow its folder (--allow-write DIR)")  # fmt: skip


def is_free(path: Path, run_dir: Path | None) -> bool:
    """Whether any recipe may write there: in the run folder, or below the working directory where nothing is hidden."""
    here = Path.cwd()
    if _is_visible(path, here) and here != Path(here.anchor):
        return True
    if run_dir is None or real_path(here).is_relative_to(real_path(run_dir)):  # such as `.`, the user's home
        return False
    is_own = _is_visible(run_dir, here) or not real_path(run_dir).is_relative_to(real_path(here))
    return is_own and real_path(path).is_relative_to(real_path(run_dir)) and real_path(path) != real_path(run_dir)


def _is_visible(path: Path, folder: Path) -> bool:
    """Whether a path leads below a folder, links followed, through no name that begins with a dot."""
    lies, root = real_path(path), real_path(folder)
    below = lies.relative_to(root).parts if lies.is_relative_to(root) else ()
    return bool(below) and not any(part.startswith(".") for part in below)


def _of_git(path: Path) -> Path | None:
    """The folder of git's own that a path lies in. Git runs what its folders say: a hook, a filter, a pager."""
    lies = real_path(path)
    for folder in (lies, *lies.parents):
        if folder == Path.cwd() or (folder / ".git").exists():  # a checkout, which may itself lie in a bare repository
            return None
        is_bare = (folder / "HEAD").is_file() and all((folder / name).is_dir() for name in ("objects", "refs"))
        if folder.name.lower() == ".git" or is_bare:
            return folder
    return None
