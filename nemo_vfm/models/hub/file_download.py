"""Downloads one file of a commit: resumes a partial file, verifies size and hash, then renames it into place."""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.client import HTTPMessage
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import warn
from nemo_vfm.core.network.retry import RetryableError
from nemo_vfm.core.storage.files import sync
from nemo_vfm.models.hub.hub_client import HubClient, HubResponse
from nemo_vfm.models.hub.hub_file import HubFile
from nemo_vfm.models.hub.hub_names import path_in

_BLOCK = 1 << 20
_PROGRESS_BYTES = 1 << 20  # an attempt that receives this many resets the count of failures
_SLOWEST_BYTES, _SLOW_S = 64 << 10, 60.0  # slower than this counts as a broken connection
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class FileDownloader:
    """Downloads files of one commit, to which every response must belong.

    `parts` is the folder for partial files; `advance` is called with the number of new bytes, negative when bytes are
    discarded.
    """

    def __init__(self, client: HubClient, commit: str, parts: Path, advance: Callable[[int], None]) -> None:
        self._client, self._commit, self._parts, self._advance = client, commit, parts, advance

    def download(self, file: HubFile, target: str, folder: Path) -> HubFile:
        """Download a file into a folder; the same with its sha256.

        DataError where the bytes do not match the commit; they are deleted. After a HubError the partial file is kept.
        """
        part = self._parts / file.part_name
        for is_last in (False, True):
            failures, largest = 0, _size(part)
            in_pieces = largest > 0
            while True:
                try:
                    self._receive(file, target, part)
                    break
                except RetryableError as error:
                    failures = 0 if _size(part) - largest >= _PROGRESS_BYTES else failures
                    self._client.pause(failures, error, file.path)
                    failures, largest, in_pieces = failures + 1, max(largest, _size(part)), True
            try:
                found = file.verify(part)
                break
            except DataError as error:
                self._drop(part)
                if is_last or not in_pieces:
                    raise
                warn(f"{error}; it was received in several pieces, so it is downloaded again from the start")
        where = path_in(folder, file.path, make=True)
        sync(part)
        part.replace(where)
        sync(where.parent)
        return found

    def _receive(self, file: HubFile, target: str, part: Path) -> None:
        start = _size(part)
        if start > file.size:
            self._drop(part)
            start = 0
        if start == file.size:
            os.close(_open(part, start))
            return
        headers, check = {"Range": f"bytes={start}-"} if start else {}, partial(self._require_commit, file)
        with self._client.get(target, headers, check) as reply:
            status, size = reply.response.status, reply.response.length
            found = _RANGE.fullmatch(reply.response.headers.get("Content-Range", "")) if status == 206 else None
            if status != 200:
                size = None if found is None or found[3] == "*" else int(found[3])
            if size is not None and size != file.size:
                raise DataError(f"{file.path}: {reply.host} announced {size:,} bytes, but the commit lists "
                                f"{file.size:,}")  # fmt: skip
            if status != 200 and (found is None or int(found[1]) != start):
                self._drop(part)  # the next attempt requests the whole file
                raise RetryableError(
                    f"{reply.host} did not send the rest of the file from byte {start:,} (status {status})"
                )
            self._copy(reply, part, 0 if status == 200 else start, file)

    def _copy(self, reply: HubResponse, part: Path, offset: int, file: HubFile) -> None:
        if offset == 0:
            self._advance(-_size(part))
        since, received = time.monotonic(), 0
        with os.fdopen(_open(part, offset), "ab") as out:
            while block := reply.read(min(_BLOCK, file.size - offset + 1)):
                if offset + len(block) > file.size:
                    self._drop(part)
                    raise DataError(f"{file.path}: {reply.host} sent more than the {file.size:,} bytes that the "
                                    "commit lists; the download was stopped")  # fmt: skip
                out.write(block)
                offset += len(block)
                self._advance(len(block))
                received, now = received + len(block), time.monotonic()
                if now - since >= _SLOW_S:
                    if received < _SLOWEST_BYTES:
                        raise RetryableError(f"received only {received:,} bytes in {now - since:.0f} s")
                    since, received = now, 0
        if offset < file.size:
            raise RetryableError(f"the connection ended after {offset:,} of {file.size:,} bytes")

    def _require_commit(self, file: HubFile, headers: HTTPMessage) -> None:
        """Check the hub's own headers, which are optional, before the body is read."""
        etag = re.fullmatch(r'(?:W/)?"?([0-9a-f]{64})"?', (headers.get("X-Linked-Etag") or "").strip())
        claims = {"commit": (headers.get("X-Repo-Commit"), self._commit),
                  "size": (headers.get("X-Linked-Size"), str(file.size)),
                  "sha256": (None if etag is None else etag[1], file.sha256)}  # fmt: skip
        for what, (got, expected) in claims.items():
            if got is not None and expected is not None and got != expected:
                raise DataError(f"{file.path}: the hub now reports {what} {got[:80]!r}, expected {expected} "
                                "from the commit")  # fmt: skip

    def _drop(self, part: Path) -> None:
        self._advance(-_size(part))
        part.unlink(missing_ok=True)


def _open(part: Path, offset: int) -> int:
    """Open a partial file for appending; truncate it if the offset is 0. A symbolic link is refused."""
    truncate = os.O_TRUNC if offset == 0 else 0
    return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | truncate, 0o666)


def _size(part: Path) -> int:
    with suppress(FileNotFoundError):
        return part.lstat().st_size
    return 0
