"""Validates the file names that a server lists, before any of them becomes a local path."""

import unicodedata
from collections.abc import Iterable
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.sanitize import UNSEEN, printable

#: Names of the download record and of the folder for partial files; a model's own files may not use them.
RECORD, UNFINISHED = "get.json", ".get"
_LONGEST_NAME, _LONGEST_PATH, _MOST_LEVELS = 200, 1000, 16  # bytes, bytes, folders


def require_names(paths: Iterable[str]) -> None:
    """Refuse names that leave the folder, hide characters, or collide.

    Args:
        paths: relative file paths with `/` as separator.

    Raises:
        DataError: a name is refused; the message says which and why.
    """
    known: dict[str, tuple[str, str]] = {}
    for path in paths:
        if reason := _refusal(path):
            raise DataError(f"the hub lists a file that is refused: {printable(repr(path), 120)} {reason}")
        _require_unique(path, known)


def path_in(folder: Path, path: str, *, make: bool = False) -> Path:
    """Return the local path of a model's file.

    Args:
        folder: the model's folder.
        path: a path that `require_names` accepts.
        make: whether to create the folders between them.

    Raises:
        DataError: a component is a symbolic link, or has the wrong type; links are not followed.
    """
    where = folder
    for part in path.split("/")[:-1]:
        where /= part
        if make and not where.is_symlink() and not where.exists():
            where.mkdir(exist_ok=True)
        if where.is_symlink() or (where.exists() and not where.is_dir()):
            raise DataError(f"{where} is a link or a file, but the model has a folder there; links are not followed")
    found = where / path.rpartition("/")[2]
    if found.is_symlink() or (found.exists() and not found.is_file()):
        raise DataError(f"{found} is a link or a folder, but the model has a file there; links are not followed")
    return found


def _refusal(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or {"", ".", ".."} & set(parts):
        return "is not a plain path inside the model's folder"
    if UNSEEN.search(path) or not path.isprintable():
        return "has invisible characters"
    if len(path.encode()) > _LONGEST_PATH or len(parts) > _MOST_LEVELS:
        return "is too long or too deep"
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return "is too long"
    # Git would run commands from the configuration of a repository inside the folder.
    if any(part.casefold().rstrip(". ") == ".git" for part in parts):
        return "is reserved for git"
    if parts[0].casefold() in (RECORD, UNFINISHED):
        return f"collides with {parts[0].casefold()}, which `get` writes"
    return ""


def _require_unique(path: str, known: dict[str, tuple[str, str]]) -> None:
    """Refuse names that are one file on case-insensitive disks, where the second would replace the first."""
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        text, kind = "/".join(parts[:depth]), "file" if depth == len(parts) else "folder"
        earlier = known.get(_folded(text))
        if earlier is not None and (earlier != (text, kind) or kind == "file"):
            raise DataError(f"the hub lists the {earlier[1]} {printable(earlier[0], 120)!r} and the {kind} "
                            f"{printable(text, 120)!r}, which are the same name on some disks")  # fmt: skip
        known[_folded(text)] = (text, kind)


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
