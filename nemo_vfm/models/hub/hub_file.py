# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Describes a file of a model by the size and the hash that its commit gives it."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.sanitize import printable
from nemo_vfm.core.storage.files import opened
from nemo_vfm.core.types.json_value import Json

_BLOCK = 1 << 20
_LARGEST = 1 << 50  # bytes: a thousand times the largest file that a hub takes
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as a commit has it. Large files are known by the sha256 of their bytes, small ones by git's hash.

    Args:
        path: inside the model's folder, with `/` between its parts.
        size: in bytes.
        sha256: in hexadecimal; None where the hub does not say it.
        git_sha1: git's name of the file: the SHA-1 of `blob SIZE`, a zero byte, and the bytes; None for large files.
    """

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def part_name(self) -> str:
        """The name of what is there of the file while it is not whole; another content has another name."""
        return f"{self.sha256 or self.git_sha1}.part"

    def require_same(self, found: "Digest") -> None:
        """Compare with the bytes of a file.

        Raises:
            DataError: size or hash is another.
        """
        for what, expected, got in (("size", self.size, found.size), ("sha256", self.sha256, found.sha256),
                                    ("git hash", self.git_sha1, found.git_sha1)):  # fmt: skip
            if expected is not None and expected != got:
                raise DataError(f"{self.path}: its {what} is {got}, expected {expected} as the commit says")


@dataclass(frozen=True, slots=True)
class Digest:
    """What a file's bytes are.

    Args:
        size: in bytes.
        sha256: in hexadecimal.
        git_sha1: see `HubFile`.
    """

    size: int
    sha256: str
    git_sha1: str


def digest_of(path: Path) -> Digest:
    """Read a file once, in blocks.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        sha256, sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while block := file.read(_BLOCK):
            sha256.update(block)
            sha1.update(block)
    return Digest(size, sha256.hexdigest(), sha1.hexdigest())


def listed_file(entry: Json) -> HubFile | None:
    """What an entry of the hub's listing says; None for a folder, or what is no file.

    Raises:
        DataError: it is not such an entry.
    """
    if not isinstance(entry, Mapping) or not isinstance(path := entry.get("path"), str):
        raise DataError("the hub's listing has an entry without a path")
    if entry.get("type") != "file":
        return None
    lfs = entry.get("lfs")
    where = lfs if isinstance(lfs, Mapping) else entry
    shape = _SHA256 if where is lfs else _SHA1
    size, oid = where.get("size"), where.get("oid")
    if not _is_size(size) or size != entry.get("size") or not isinstance(oid, str) or not shape.fullmatch(oid):
        raise DataError(f"the hub's listing gives {printable(repr(path), 120)} no size or no hash that can be one")
    return HubFile(path, size, oid, None) if where is lfs else HubFile(path, size, None, oid)


def recorded_file(path: str, entry: Json) -> HubFile:
    """What the record of an earlier run says of a file.

    Raises:
        ValueError: it is not such an entry.
    """
    if not isinstance(entry, Mapping):
        raise ValueError(path)
    size, sha256, git_sha1 = (entry.get(key) for key in ("size", "sha256", "git_sha1"))
    known = (sha256 is None or _is_hash(sha256, _SHA256)) and (git_sha1 is None or _is_hash(git_sha1, _SHA1))
    if not _is_size(size) or not known or (sha256 is None and git_sha1 is None):
        raise ValueError(path)
    return HubFile(path, size, sha256, git_sha1)


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _is_hash(value: object, shape: re.Pattern[str]) -> bool:
    return isinstance(value, str) and shape.fullmatch(value) is not None
