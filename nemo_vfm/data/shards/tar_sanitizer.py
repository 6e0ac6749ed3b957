# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Filters a stream of any tar into a tar that holds only regular, whole files with short names.

webdataset reads the result. Otherwise it would unpack a compressed tar of any size, fill memory with the zeros of a
sparse file, or stop at a repeated name.
"""

import tarfile
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.shards.tar import BLOCK, header, name_of_member, padding, why_not

_MAX_NAME_BYTES = 1 << 20  # a long-name or pax header beyond this is an attack, not a name
_LONGEST_NAME = 100
_NAMING = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_IGNORED = (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK)
_SPARSE_MORE, _SPARSE_LAST = 482, 504  # where the old sparse header and its extensions say that another follows


class Unreadable(DataError):
    """These bytes are no tar, or one that is made to do harm."""


class Stream(Protocol):
    """Bytes from front to back."""

    def read(self, size: int, /) -> bytes:
        """At most so many; fewer or none at the end."""
        ...


class Sieve:
    """A tar to read from, sieved.

    Args:
        source: the tar as it comes.
        name: how messages call it.
        max_member_bytes: larger members are passed over without being held.
    """

    def __init__(self, source: Stream, name: str, *, max_member_bytes: int) -> None:
        self._source, self._name, self._max_member_bytes = source, name, max_member_bytes
        self.skipped: Counter[str] = Counter()  #: reason -> how many members were left out for it
        self._parts, self._held = self._sieved(), b""

    def read(self, size: int, /) -> bytes:
        """The next bytes of the sieved tar."""
        while len(self._held) < size and (part := next(self._parts, b"")):
            self._held += part
        given, self._held = self._held[:size], self._held[size:]
        return given

    def _sieved(self) -> Iterator[bytes]:
        names: set[str] = set()
        for info in self._members():
            kept = self._payload(info, self._reason(info, names))
            if kept is not None:
                names.add(info.name)
                yield header(info.name, info.size) + kept + padding(info.size)
        yield bytes(2 * BLOCK)

    def _reason(self, info: tarfile.TarInfo, names: set[str]) -> str | None:
        if len(info.name) > _LONGEST_NAME or not info.name.isascii():
            return "a name too long or not plain"
        if info.name in names:
            return "a name twice"
        return why_not(info, name_of_member(info.name), self._max_member_bytes)

    def _payload(self, info: tarfile.TarInfo, reason: str | None) -> bytes | None:
        """The member's bytes; None where it is left out, for a reason that is counted."""
        if reason is not None:
            self.skipped[reason] += 1
            # Links, folders and devices have no bytes, whatever their header says of a size.
            if info.isreg() or info.type not in tarfile.SUPPORTED_TYPES:
                self._pass(info.size)
            return None
        data = self._exactly(info.size)
        if data is None or self._exactly(-info.size % BLOCK) is None:
            self.skipped["cut off by the tar's end"] += 1
            return None
        return data

    def _members(self) -> Iterator[tarfile.TarInfo]:
        """Headers with the names that the headers before them gave; the payload is still to be read."""
        name, size, sparse, first = None, None, False, True
        while (block := self._exactly(BLOCK)) is not None:
            if not any(block):
                return
            info = self._header(block, first)
            first = False
            if info is None:
                return
            if info.type in _IGNORED:
                self._pass(info.size)
            elif info.type in _NAMING:
                name, size, sparse = self._named(info, name, size, sparse)
            else:
                info.name, info.size = name or info.name, info.size if size is None else size
                if sparse or info.type == tarfile.GNUTYPE_SPARSE:
                    self._skip_sparse(block, info)
                    info.sparse = b""  # what `issparse` asks
                yield info
                name, size, sparse = None, None, False
        self.skipped["after the tar's early end"] += 1

    def _header(self, block: bytes, first: bool) -> tarfile.TarInfo | None:
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            if info.size < 0:
                raise tarfile.HeaderError(f"a size of {info.size}")
            return info
        except (tarfile.HeaderError, ValueError) as error:
            if first:
                raise Unreadable(
                    f"{self._name} is not a tar that can be read (compressed tars are not): {error}"
                ) from error
            self.skipped["after a damaged header"] += 1
            return None

    def _named(
        self, info: tarfile.TarInfo, name: str | None, size: int | None, sparse: bool
    ) -> tuple[str | None, int | None, bool]:
        """What a long-name or pax header says of the member after it: its name, its size, and whether it has holes."""
        if info.size > _MAX_NAME_BYTES:
            raise Unreadable(f"{self._name} has a header that claims {info.size:,} bytes")
        data = self._exactly(info.size + -info.size % BLOCK) or b""
        if info.type == tarfile.GNUTYPE_LONGNAME:
            return data[: info.size].rstrip(b"\x00").decode(errors="replace"), size, sparse
        for key, value in _records(data[: info.size]):
            if key == "path":
                name = value
            elif key == "size" and value.isascii() and value.isdigit() and len(value) < 20:
                size = int(value)
            sparse = sparse or key.startswith("GNU.sparse")
        return name, size, sparse

    def _skip_sparse(self, block: bytes, info: tarfile.TarInfo) -> None:
        """The old kind has its map in blocks between header and bytes."""
        more = info.type == tarfile.GNUTYPE_SPARSE and block[_SPARSE_MORE]
        while more and (extension := self._exactly(BLOCK)) is not None:
            more = extension[_SPARSE_LAST]

    def _exactly(self, size: int) -> bytes | None:
        """So many bytes; None where the tar ends before."""
        parts, missing = [], size
        while missing and (part := self._source.read(min(missing, 1 << 22))):
            parts.append(part)
            missing -= len(part)
        return None if missing else b"".join(parts)

    def _pass(self, size: int) -> None:
        missing = size + -size % BLOCK
        while missing and (part := self._source.read(min(missing, 1 << 20))):
            missing -= len(part)


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """The `length key=value` lines of a pax header; ends where they stop making sense."""
    position = 0
    while position < len(data):
        digits, space, _ = data[position : position + 12].partition(b" ")
        if not space or not digits.isdigit() or not (length := int(digits)) or position + length > len(data):
            return
        key, equals, value = data[position + len(digits) + 1 : position + length - 1].partition(b"=")
        if equals:
            yield key.decode(errors="replace"), value.decode(errors="replace")
        position += length
