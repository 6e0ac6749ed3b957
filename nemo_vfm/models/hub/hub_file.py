"""Asks a hub which files a revision's commit has, and describes each by the size and hash that the commit lists."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard
from urllib.parse import quote

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.sanitize import printable
from nemo_vfm.core.storage.files import open_regular
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.hub.hub_client import HubClient
from nemo_vfm.models.hub.hub_names import HubAddress, is_commit, require_names

MAX_FILES = 20_000
_MAX_JSON_BYTES = 64 << 20  # of a complete listing: 20,000 files at 3 kB
_MIN_PAGE = 50  # files per page, which bounds the number of requests
_BLOCK = 1 << 20
_LARGEST = 1 << 50  # bytes: a thousand times the largest file that a hub takes
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a commit. Large files are identified by their sha256, small ones by git's hash."""

    path: str  #: inside the model's folder, with `/` as separator
    size: int  #: in bytes
    sha256: str | None = None  #: in hexadecimal; None if the hub does not list it
    #: git's blob hash, the SHA-1 of `blob SIZE`, a zero byte and the bytes; None for large files
    git_sha1: str | None = None

    @property
    def part_name(self) -> str:
        """Name of the partial file; it depends on the content."""
        return f"{self.sha256 or self.git_sha1}.part"

    def verify(self, where: Path) -> "HubFile":
        """The same with its sha256, if a local file is it; DataError where the size or a hash differs."""
        with open_regular(where) as file:
            size = os.fstat(file.fileno()).st_size
            sha256, sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
            while block := file.read(_BLOCK):
                sha256.update(block)
                sha1.update(block)
        for what, expected, got in (("size", self.size, size), ("sha256", self.sha256, sha256.hexdigest()),
                                    ("git hash", self.git_sha1, sha1.hexdigest())):  # fmt: skip
            if expected is not None and expected != got:
                raise DataError(f"{self.path}: {what} is {got}, but the commit lists {expected}")
        return replace(self, sha256=sha256.hexdigest())


def recorded_file(path: str, entry: Json) -> HubFile:
    """Parse an entry of a download record."""
    if not isinstance(entry, Mapping):
        raise ValueError(path)
    size, sha256, git_sha1 = (entry.get(key) for key in ("size", "sha256", "git_sha1"))
    for value, shape in ((sha256, _SHA256), (git_sha1, _SHA1)):
        if value is not None and not (isinstance(value, str) and shape.fullmatch(value)):
            raise ValueError(path)
    if not _is_size(size) or (sha256 is None and git_sha1 is None):
        raise ValueError(path)
    return HubFile(path, size, sha256, git_sha1)


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def listing_of(client: HubClient, address: HubAddress) -> tuple[str, dict[str, HubFile]]:
    """Resolve a revision to a commit, once; the commit and its files by path, sorted."""
    target = f"/api/models/{address.model}/revision/{quote(address.revision, safe='')}"
    answer, _, _ = client.json(f"the commit of {address}", target, _MAX_JSON_BYTES)
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not is_commit(commit):
        raise DataError(f"the hub did not resolve {address}: {printable(repr(commit), 80)} is not a commit")
    if is_commit(address.revision) and commit != address.revision:
        raise DataError(f"the hub returned commit {commit}, but {address.revision} was requested")
    files: list[HubFile] = []
    length = pages = 0
    page: str | None = f"/api/models/{address.model}/tree/{commit}?recursive=true"
    while page is not None:
        entries, page, size = client.json(f"the list of files of {address.model}", page, _MAX_JSON_BYTES - length)
        pages, length = pages + 1, length + size
        if not isinstance(entries, list):
            raise DataError("the hub's listing of files is not a list")
        for entry in entries:
            if not isinstance(entry, Mapping) or not isinstance(path := entry.get("path"), str):
                raise DataError("the hub's listing has an entry without a path")
            if entry.get("type") != "file":
                continue
            lfs = entry.get("lfs")
            source = lfs if isinstance(lfs, Mapping) else entry
            bytes_, oid, shape = source.get("size"), source.get("oid"), _SHA256 if source is lfs else _SHA1
            has_hash = isinstance(oid, str) and shape.fullmatch(oid)
            if not _is_size(bytes_) or bytes_ != entry.get("size") or not has_hash:
                raise DataError(f"the hub's listing gives {printable(repr(path), 120)} no size or no hash that can be "
                                "one")  # fmt: skip
            files.append(HubFile(path, bytes_, oid, None) if source is lfs else HubFile(path, bytes_, None, oid))
        if len(files) > MAX_FILES or pages > MAX_FILES // _MIN_PAGE:
            raise DataError(
                f"the hub's listing has more than {MAX_FILES:,} files or too many pages; no model is that large"
            )
    files.sort(key=lambda file: file.path)
    require_names(file.path for file in files)
    return commit, {file.path: file for file in files}
