"""Puts a working tree sent by `submit --ssh` into its folder, and submits there with the arguments sent along.

The folder becomes a git repository whose index names exactly the files received: so `submit` takes a snapshot of it as
of any other working tree. Files that runs wrote there stay; files of an earlier submission that are no longer sent go.
The stream is one line of JSON, `{"folder", "below", "words"}`, and then a tar (`launcher/remote/send.py`).
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from launcher.cli import PROGRAM
from launcher.plan.programs import program
from launcher.state.snapshot import MAX_BYTES, MAX_FILES, TreeFile, put
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import scrub
from nemo_vfm.core.storage.files import read_json, write_json

_MARK = Path(".git/vfm-launch-ssh.json")  # the paths received last; a folder without it is not ours
_MAX_HEAD_BYTES = 4 << 20


def main() -> int:
    """Receive and submit. The exit status is that of `submit`, or 2 if the tree cannot be received."""
    try:
        arguments = receive_tree(sys.stdin.buffer)
    except (UserError, OSError, ValueError, tarfile.TarError) as error:
        sys.stderr.write(f"{scrub(str(error))}\n")
        return 2
    return PROGRAM.main(["submit", *arguments])


def receive_tree(stream: IO[bytes]) -> list[str]:
    """Write the tree, change to the folder in it where the command was typed, and return its arguments."""
    head = json.loads(stream.readline(_MAX_HEAD_BYTES))
    folder = Path.home() / head["folder"]
    files: dict[str, TreeFile] = {}
    total = 0
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for entry in tar:
            total += entry.size
            if total > MAX_BYTES or len(files) >= MAX_FILES or not (entry.isreg() or entry.issym()):
                raise UserError(f"the files received contain something that a working tree cannot hold: {entry.name!r}")
            opened = tar.extractfile(entry) if entry.isreg() else None
            content = opened.read() if opened is not None else os.fsencode(entry.linkname)
            files[str(_inside(entry.name))] = TreeFile(content, entry.mode & 0o777 | 0o400 if opened is not None else 0)
    _write(folder, files)
    here = folder / _inside(head["below"])
    here.mkdir(parents=True, exist_ok=True)
    os.chdir(here)
    return [str(word) for word in head["words"]]


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or {"..", ".git"} & set(path.parts):
        raise UserError(f"{name!r} leads out of the working tree")
    return path


def _write(folder: Path, files: Mapping[str, TreeFile]) -> None:
    mark = folder / _MARK
    if folder.is_dir() and any(folder.iterdir()) and not mark.is_file():
        raise UserError(f"{folder} holds files that --ssh did not copy there, and was left as it is; "
                        f"choose another folder with --ssh-folder")  # fmt: skip
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    for old in read_json(mark) if mark.is_file() else ():
        _remove(folder, _inside(str(old)))
    for path, one in files.items():
        _remove(folder, PurePosixPath(path))
        put(folder / path, one)
    _index(folder, files)
    write_json(mark, list(files))


def _remove(folder: Path, path: PurePosixPath) -> None:
    """Remove a file, and any symlink above it: writing through one would leave the folder."""
    for one in (*reversed(path.parents[:-1]), path):  # the folder itself may be a link to a larger disk
        target = folder / one
        if target.is_symlink() or (target.is_file() and one == path):
            target.unlink()


def _index(folder: Path, files: Mapping[str, TreeFile]) -> None:
    """Make a git index that lists these files, as that of the sender's repository does."""
    git = program("git")
    if git is None:
        (folder / _MARK).parent.mkdir(exist_ok=True)
        sys.stderr.write("there is no git on this machine, so no code is copied: the installed packages run\n")
        return
    shutil.rmtree(folder / ".git", ignore_errors=True)
    names = b"".join(os.fsencode(path) + b"\0" for path in files)
    for command in (["init", "-q"], ["update-index", "--add", "-z", "--stdin"]):
        # Git runs in a new repository, so no foreign hook or setting applies, and without a shell.
        subprocess.run([git, "-C", str(folder), *command], input=names, check=True, capture_output=True)  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
