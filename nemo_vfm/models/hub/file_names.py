# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Judges the names of files that a server gives, before any of them becomes a path here."""

import unicodedata
from collections.abc import Iterable
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.sanitize import UNSEEN, printable

#: The record of what was brought, and the folder of what is not whole yet: names that no file of a model may have.
RECORD, UNFINISHED = "get.json", ".get"
_LONGEST_NAME, _LONGEST_PATH, _MOST_LEVELS = 200, 1000, 16  # bytes, bytes, folders


def require_names(paths: Iterable[str]) -> None:
    """Refuse names that could lead out of a folder, hide, or meet each other.

    Args:
        paths: of files, relative, with `/` between their parts.

    Raises:
        DataError: one of them is refused; the text says which and why.
    """
    known: dict[str, tuple[str, str]] = {}
    for path in paths:
        if reason := _why_not(path):
            raise DataError(f"the hub lists a file that is never written: {printable(repr(path), 120)} {reason}")
        _require_alone(path, known)


def path_in(folder: Path, path: str, *, make: bool = False) -> Path:
    """Where a file of such a name goes.

    Args:
        folder: of the model.
        path: that `require_names` lets through.
        make: whether to make the folders between them.

    Raises:
        DataError: one of them, or the file, is a link or something else; links are not followed.
    """
    where = folder
    for part in path.split("/")[:-1]:
        where /= part
        if make and not where.is_symlink() and not where.exists():
            where.mkdir(exist_ok=True)
        if where.is_symlink() or (where.exists() and not where.is_dir()):
            raise DataError(f"{where} is a link or a file, where the model has a folder; links are not followed")
    found = where / path.rpartition("/")[2]
    if found.is_symlink() or (found.exists() and not found.is_file()):
        raise DataError(f"{found} is a link or a folder, where the model has a file; links are not followed")
    return found


def _why_not(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or {"", ".", ".."} & set(parts):
        return "is not a plain path inside the model's folder"
    if UNSEEN.search(path) or not path.isprintable():
        return "has characters that do not show"
    if len(path.encode()) > _LONGEST_PATH or len(parts) > _MOST_LEVELS:
        return "is too long or too deep"
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return "is too long"
    # Whoever looks at the folder with git would run what the settings of a repository inside it say.
    if any(part.casefold().rstrip(". ") == ".git" for part in parts):
        return "belongs to git itself"
    if parts[0].casefold() in (RECORD, UNFINISHED):
        return f"has the name of {parts[0].casefold()}, which `get` writes"
    return ""


def _require_alone(path: str, known: dict[str, tuple[str, str]]) -> None:
    """On some disks two names that differ by case are one file; the second would replace the first."""
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        text, kind = "/".join(parts[:depth]), "file" if depth == len(parts) else "folder"
        earlier = known.get(_folded(text))
        if earlier is not None and (earlier != (text, kind) or kind == "file"):
            raise DataError(f"the hub lists the {earlier[1]} {printable(earlier[0], 120)!r} and the {kind} "
                            f"{printable(text, 120)!r}, which are one name on some disks")  # fmt: skip
        known[_folded(text)] = (text, kind)


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
