"""Queries a git repository without running any program that the repository's own settings name.

A repository may be a stranger's, as a recipe may. Its `.git/config` and `.git/hooks` can make `git status` run
programs. Examples are filters, file system monitors, hooks, and transports that fetch missing objects. So the few
commands here read names and object ids only; contents are compared by their hash, and never by git.
"""

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.plan.programs import program, search_path
from nemo_vfm.core.errors import UserError

_PATIENCE_S = 60.0  # settings may include a FIFO, from which git would read for ever
#: What git sets inside of its own hooks, where it would be another repository's.
_OF_ANOTHER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
_SETTINGS = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}")
#: No transport may run: of a partial clone, git would fetch what is missing by a command that the settings name.
_VARIABLES = {"LC_ALL": "C", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0",
              "GIT_TERMINAL_PROMPT": "0"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """What a commit holds at a path: its mode, such as 100644, and the id of its content."""

    mode: str
    id: str

    def holds(self, content: bytes, mode: int) -> bool:
        """Whether a file is the same; `mode` has its permission bits, and is 0 for a link."""
        kind = "120000" if not mode else "100755" if mode & 0o100 else "100644"
        digest = hashlib.sha1 if len(self.id) == 40 else hashlib.sha256
        return self.mode == kind and digest(b"blob %d\0%s" % (len(content), content)).hexdigest() == self.id


def root_of(folder: Path) -> Path | None:
    """The root of the repository that holds a folder; None where none does."""
    if program("git") is None:
        return None
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode == 0:
        root = Path(os.fsdecode(done.stdout).rstrip("\n"))
        here = folder.resolve()
        # `core.worktree` may name any folder: of a stranger's repository, your home.
        nearest = next((one for one in (here, *here.parents) if (one / ".git").exists()), None)
        if nearest is None or root.resolve() != nearest:
            raise UserError(
                f"the repository of {folder} says that its working tree is {root}, but its .git is in "
                f"{nearest or 'another folder'}. Fix core.worktree in its config, or copy no code: --no-code"
            )
        return root
    message = os.fsdecode(done.stderr).strip()
    if "not a git repository" in message:
        return None
    raise UserError(f"git cannot read the repository of {folder}: {message}. Fix that, or copy no code: --no-code")


def names(root: Path, *words: str) -> list[str]:
    """The paths that `git ls-files` lists, below the root."""
    done = _git(root, "ls-files", "-z", *words)
    if done.returncode:
        raise UserError(f"git cannot list the files of {root}: {os.fsdecode(done.stderr).strip()}")
    found = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    for name in found:
        if name.startswith("/") or {"..", ".git"} & set(name.split("/")):  # no git adds such a path to an index
            raise UserError(f"the index of {root} names {name!r}, which is no file of the working tree; its .git was "
                            f"made by hand. Copy no code: --no-code")  # fmt: skip
    return found


def head(root: Path) -> str | None:
    """The id of the last commit; None where there is none."""
    done = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    return done.stdout.decode().strip() if done.returncode == 0 else None


def entries(root: Path) -> Mapping[str, TreeEntry]:
    """What the last commit holds, by path; nothing where git cannot read it. A repository inside has mode 160000."""
    done = _git(root, "ls-tree", "-r", "-z", "--full-tree", "HEAD")
    lines = [os.fsdecode(line).partition("\t") for line in done.stdout.split(b"\0") if line]
    return {} if done.returncode else {path: TreeEntry(words.split()[0], words.split()[2]) for words, _, path in lines}


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    settings: Sequence[str] = [word for setting in _SETTINGS for word in ("-c", setting)]
    command = [program("git") or "git", "-C", str(folder), *settings, *words]
    outer = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=_PATIENCE_S,  # noqa: S603
                              stdin=subprocess.DEVNULL, env={**outer, "PATH": search_path(), **_VARIABLES})  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UserError(f"git {words[0]} gave no answer for {_PATIENCE_S:.0f} s in {folder}; look at its .git/config, "
                        f"or copy no code: --no-code") from error  # fmt: skip
