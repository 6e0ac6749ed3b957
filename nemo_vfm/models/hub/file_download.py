# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Brings one file of a commit: continues what is there, compares size and hash, and only then gives it its name."""

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
from nemo_vfm.core.network.retry import TryAgain
from nemo_vfm.core.storage.files import sync
from nemo_vfm.models.hub.file_names import path_in
from nemo_vfm.models.hub.hub_client import HubClient, HubResponse
from nemo_vfm.models.hub.hub_file import Digest, HubFile, digest_of

_BLOCK = 1 << 20
_PROGRESS_BYTES = 1 << 20  # a try that brought so many was none in vain
_SLOWEST_BYTES, _SLOW_S = 64 << 10, 60.0  # fewer bytes in that time are as good as a broken connection
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class FileDownload:
    """Brings files of one commit.

    Args:
        client: asks the hub.
        commit: that every answer has to be of.
        parts: folder of what is not whole yet.
        advance: is told the bytes that are new here; negative where some had to be dropped.
    """

    def __init__(self, client: HubClient, commit: str, parts: Path, advance: Callable[[int], None]) -> None:
        self._client, self._commit, self._parts, self._advance = client, commit, parts, advance

    def bring(self, file: HubFile, target: str, folder: Path) -> Digest:
        """Bring a file and give it its name in a folder.

        Args:
            file: as the commit has it.
            target: where the hub has it.
            folder: of the model.

        Returns:
            What its bytes are.

        Raises:
            DataError: its bytes are not those of the commit; nothing of them is kept.
            HubError: the hub fails in all tries; what has come stays for the next run.
        """
        part = self._parts / file.part_name
        found = self._whole(file, target, part)
        where = path_in(folder, file.path, make=True)
        sync(part)
        part.replace(where)
        sync(where.parent)
        return found

    def _whole(self, file: HubFile, target: str, part: Path) -> Digest:
        """All bytes; what was put together from several pieces and is wrong is brought once more."""
        resumed = _size(part) > 0
        in_pieces = self._receive_all(file, target, part)
        try:
            return self._verified(file, part)
        except DataError as error:
            if not (resumed or in_pieces):
                raise
            warn(f"{error}; it came in several pieces, so it is brought again from its beginning")
        self._receive_all(file, target, part)
        return self._verified(file, part)

    def _verified(self, file: HubFile, part: Path) -> Digest:
        """What the bytes are; they are removed where they are not the commit's."""
        found = digest_of(part)
        try:
            file.require_same(found)
        except DataError:
            self._drop(part)
            raise
        return found

    def _receive_all(self, file: HubFile, target: str, part: Path) -> bool:
        """Try until the size is right; whether it took more than one try."""
        failures, tries, most = 0, 0, _size(part)
        while True:
            try:
                self._receive(file, target, part)
                return tries > 0
            except TryAgain as error:
                failures = 0 if _size(part) - most >= _PROGRESS_BYTES else failures
                self._client.pause(failures, error, file.path)
                failures, tries, most = failures + 1, tries + 1, max(most, _size(part))

    def _receive(self, file: HubFile, target: str, part: Path) -> None:
        """One try."""
        start = _size(part)
        if start > file.size:
            self._drop(part)
            start = 0
        if start == file.size:
            os.close(_opened(part, start))
            return
        headers, check = {"Range": f"bytes={start}-"} if start else {}, partial(self._require_commit, file)
        with self._client.get(target, headers, check) as answer:
            self._copy(answer, part, self._offset(answer, file, part, start), file)

    def _offset(self, answer: HubResponse, file: HubFile, part: Path, start: int) -> int:
        """Where in the file the answer's first byte belongs."""
        status = answer.response.status
        if status == 200:
            _require_size(file, answer.length, answer.host)
            return 0
        found = _RANGE.fullmatch(answer.response.headers.get("Content-Range", "")) if status == 206 else None
        if found is not None and found[3] != "*":
            _require_size(file, int(found[3]), answer.host)
        if found is None or int(found[1]) != start:
            self._drop(part)  # the next try asks for the whole
            raise TryAgain(f"{answer.host} does not give the rest of the file from byte {start:,} on (status {status})")
        return start

    def _copy(self, answer: HubResponse, part: Path, offset: int, file: HubFile) -> None:
        if offset == 0:
            self._advance(-_size(part))
        pace = _Pace()
        with os.fdopen(_opened(part, offset), "ab") as out:
            while block := answer.read(min(_BLOCK, file.size - offset + 1)):
                if offset + len(block) > file.size:
                    self._drop(part)
                    raise DataError(f"{file.path}: {answer.host} sends more than the {file.size:,} bytes that the "
                                    "commit says; it was cut off")  # fmt: skip
                out.write(block)
                offset += len(block)
                self._advance(len(block))
                pace.require(len(block))
        if offset < file.size:
            raise TryAgain(f"the connection ended after {offset:,} of {file.size:,} bytes")

    def _require_commit(self, file: HubFile, headers: HTTPMessage) -> None:
        """What the hub says itself of the file, before its bytes come; it may say nothing."""
        said = {"commit": (headers.get("X-Repo-Commit"), self._commit),
                "size": (headers.get("X-Linked-Size"), str(file.size)),
                "sha256": (_tag(headers.get("X-Linked-Etag")), file.sha256)}  # fmt: skip
        for what, (got, expected) in said.items():
            if got is not None and expected is not None and got != expected:
                raise DataError(f"{file.path}: the hub now gives the {what} {got[:80]!r}, where the commit's own is "
                                f"{expected}")  # fmt: skip

    def _drop(self, part: Path) -> None:
        self._advance(-_size(part))
        part.unlink(missing_ok=True)


class _Pace:
    """Notices a body that drips."""

    def __init__(self) -> None:
        self._since, self._bytes = time.monotonic(), 0

    def require(self, count: int) -> None:
        """Raises TryAgain where the last minute brought next to nothing."""
        self._bytes += count
        now = time.monotonic()
        if now - self._since < _SLOW_S:
            return
        if self._bytes < _SLOWEST_BYTES:
            raise TryAgain(f"only {self._bytes:,} bytes came in {now - self._since:.0f} s")
        self._since, self._bytes = now, 0


def _require_size(file: HubFile, got: int | None, host: str) -> None:
    if got is not None and got != file.size:
        raise DataError(f"{file.path}: {host} announces {got:,} bytes, expected {file.size:,} as the commit says")


def _opened(part: Path, offset: int) -> int:
    """A part to append to; from its beginning where the offset is 0. A link in its place is refused."""
    fresh = os.O_TRUNC if offset == 0 else 0
    return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | fresh, 0o666)


def _size(part: Path) -> int:
    with suppress(FileNotFoundError):
        return part.lstat().st_size
    return 0


def _tag(text: str | None) -> str | None:
    """An ETag without its marks, where it is a sha256; None where it says nothing."""
    found = None if text is None else re.fullmatch(r'(?:W/)?"?([0-9a-f]{64})"?', text.strip())
    return None if found is None else found[1]
