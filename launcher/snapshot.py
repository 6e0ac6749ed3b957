# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The repository that holds a folder in, its working tree by content out: what a job runs, whatever is edited later.

Files that git tracks and files that it does not ignore belong to it; what runs have written does not. The hash is over
names, contents and whether a file may be executed: never over times, nor over who may read it.
"""

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.files import sha256_text

MOST_BYTES = 64 << 20
_NAMED = 5  # of the largest files
#: What git sets inside of its own hooks, where it would be another repository's.
_OF_ANOTHER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
_RUN = ({"launch/launch.json"}, {"recipe.yaml", "manifest.json"})  # what tells a run folder


@dataclass(frozen=True, slots=True)
class Kept:
    """One file of the tree.

    Args:
        content: its bytes; of a link, where it points to.
        mode: permission bits; 0 for a link.
    """

    content: bytes
    mode: int

    def digest(self) -> str:
        """Of content and kind, as 64 hexadecimal digits."""
        kind = b"link" if not self.mode else b"program" if self.mode & 0o100 else b"file"
        return hashlib.sha256(kind + b"\0" + self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Code:
    """A working tree.

    Args:
        root: where it lies; None where nothing is taken.
        commit: the last one, with `+changes` where files differ from it; None without git.
        files: by their path below the root, in order of names.
        why: what was done, and if nothing was taken why.
    """

    root: Path | None
    commit: str | None
    files: Mapping[str, Kept]
    why: str

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(len(one.content) for one in self.files.values())

    def listing(self) -> str:
        """A line each: digest and path. Two trees are the same where this is."""
        return "".join(f"{one.digest()}  {_escaped(path)}\n" for path, one in self.files.items())

    def hash(self) -> str:
        """Of the whole tree; empty where nothing is taken."""
        return sha256_text(self.listing()) if self.files else ""

    def write(self, folder: Path) -> None:
        """Put the tree there; whatever was there is replaced. Only the owner may look into it."""
        fresh = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True, mode=0o700)
        for path, one in self.files.items():
            _put(fresh / path, one)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.replace(folder)


def _in_words(commit: str | None) -> str:
    if commit is None:
        return "without a commit yet"
    number, changed, _ = commit.partition("+")
    return f"commit {number[:12]}{' and changes' if changed else ''}"


def nothing(why: str) -> Code:
    """No code, and why."""
    return Code(None, None, {}, why)


def take(folder: Path, leave_out: Sequence[Path] = ()) -> Code:
    """The working tree that a folder belongs to.

    Args:
        leave_out: folders that runs write into, whether they exist already or not.

    Raises:
        UserError: it is too large, a link leads out of it, or git cannot read it.
    """
    root = root_of(folder)
    if root is None:
        return nothing(f"{folder} is in no git repository, so no code is taken along: what is installed runs")
    paths = [path for path in _listed(root) if not _is_below(root / path, leave_out)]
    _require_small(root, paths)
    files = {path: _read(root, path) for path in sorted(paths)}
    commit = _commit(root)
    return Code(root, commit, files, f"{len(files)} files of {root}, {_in_words(commit)}")


def read_copy(folder: Path, commit: str | None) -> Code:
    """What `Code.write` has put there."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()]
    files = {str(path.relative_to(folder)): _read(folder, str(path.relative_to(folder))) for path in paths}
    return Code(folder, commit, dict(sorted(files.items())), f"{len(files)} files, as they were kept in {folder}")


@cache
def packages() -> str:
    """Every installed package with its version, a line each."""
    found = {f"{one.name}=={one.version}" for one in distributions() if one.name}
    return "".join(f"{line}\n" for line in sorted(found, key=str.lower))


def read_listing(text: str) -> dict[str, str]:
    """What `Code.listing` wrote, as digests by path."""
    pairs = (line.partition("  ") for line in text.splitlines())
    return {path: digest for digest, _, path in pairs}


def _escaped(path: str) -> str:
    """A name may hold a line break, or bytes that are no text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace("\n", "\\n")


def root_of(folder: Path) -> Path | None:
    """Of the git repository that a folder belongs to; None where it belongs to none.

    Raises:
        UserError: git cannot read it.
    """
    if shutil.which("git") is None:
        return None
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode == 0:
        return Path(os.fsdecode(done.stdout).rstrip("\n"))
    said = os.fsdecode(done.stderr).strip()
    if "not a git repository" in said:
        return None
    raise UserError(f"git cannot read the repository of {folder}: {said}. Mend that, or take no code along: --no-code")


def _listed(root: Path, prefix: str = "") -> list[str]:
    """What git tracks and what it does not ignore; a repository inside this one is listed by itself."""
    tracked = _names(root, "--cached")
    fresh = [path for path in _names(root, "--others", "--exclude-standard") if not _is_output(root, path)]
    found: list[str] = []
    for path in dict.fromkeys([*tracked, *fresh]):
        inside = root / path
        if inside.is_dir() and not inside.is_symlink():
            found += _listed(inside, f"{prefix}{path.rstrip('/')}/") if (inside / ".git").exists() else []
        elif inside.is_symlink() or inside.exists():  # a tracked file may have been deleted
            found.append(f"{prefix}{path}")
    return found


def _names(root: Path, *words: str) -> list[str]:
    done = _git(root, "ls-files", "-z", *words)
    if done.returncode:
        raise UserError(f"git cannot list the files of {root}: {os.fsdecode(done.stderr).strip()}")
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    # Fixed words; and no program that the repository's own settings name is started.
    command = [shutil.which("git") or "git", "-C", str(folder), "-c", "core.fsmonitor=false", *words]
    outer = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
    return subprocess.run(command, capture_output=True, check=False, timeout=120, env={**outer, "LC_ALL": "C"})  # noqa: S603


def _commit(root: Path) -> str | None:
    done = _git(root, "rev-parse", "HEAD")
    if done.returncode:
        return None
    changed = _git(root, "status", "--porcelain", "--untracked-files=no").stdout.strip()
    return done.stdout.decode().strip() + ("+changes" if changed else "")


def _is_output(root: Path, path: str) -> bool:
    """Whether a file that git does not know lies in a run folder."""
    above = list((root / path).parents)
    folders = above[: above.index(root)] if root in above else []
    return any(all((folder / name).is_file() for name in names) for folder in folders for names in _RUN)


def _is_below(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _require_small(root: Path, paths: Sequence[str]) -> None:
    sizes = {path: (root / path).lstat().st_size for path in paths}
    if (total := sum(sizes.values())) > MOST_BYTES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:_NAMED]
        named = ", ".join(f"{path} ({sizes[path] / 1e6:.1f} MB)" for path in largest)
        raise UserError(
            f"the working tree of {root} has {total / 1e6:.0f} MB, and at most {MOST_BYTES / 1e6:.0f} MB are taken "
            f"along; its largest files are {named}. Name what is no code in .gitignore, or take none: --no-code"
        )


def _read(root: Path, path: str) -> Kept:
    file = root / path
    try:
        if file.is_symlink():
            _require_inside(root, file)
            return Kept(os.fsencode(file.readlink()), 0)
        return Kept(file.read_bytes(), stat.S_IMODE(file.stat().st_mode) & 0o777 | 0o400)
    except OSError as error:
        raise UserError(f"{file} cannot be taken along: {error.strerror}; name it in .gitignore if it is no code") \
            from error  # fmt: skip


def _require_inside(root: Path, link: Path) -> None:
    """A link that leads out of the tree is another file on another day, and none at all on another machine."""
    to = link.readlink()
    lexical = Path(os.path.normpath(link.parent / to))
    if to.is_absolute() or not lexical.is_relative_to(root) or not link.resolve().is_relative_to(root.resolve()):
        raise UserError(
            f"{link.relative_to(root)} is a link that leads out of the working tree, to {to}. Name it in .gitignore if "
            f"it is no code, let it point inside the tree by a relative path, or take no code along: --no-code"
        )


def _put(path: Path, one: Kept) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not one.mode:
        path.symlink_to(os.fsdecode(one.content))
        return
    path.write_bytes(one.content)
    path.chmod(one.mode)
