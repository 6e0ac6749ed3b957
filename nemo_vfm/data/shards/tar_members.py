"""Reads any WebDataset tar from front to back, its regular files by key and extension.

Whoever reads tars reads them by this: from a disk or a stream, with an index or without. Nothing is ever extracted: a
name in a tar is text to us, never a path. tarfile and webdataset would unpack a compressed tar of any size, fill memory
with the zeros of a sparse file, or stop at a repeated name.
"""

import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Protocol, TypeVar

from nemo_vfm.core.errors import DataError

T = TypeVar("T")

BLOCK = tarfile.BLOCKSIZE
#: Formats whose decoders run code or may; their bytes are not listed, so nobody can decode them.
REFUSED_EXTENSIONS = frozenset(
    {"pkl", "pickle", "pyd", "pth", "pt", "ckpt", "bin", "dill", "joblib", "py", "pyc", "so"}
)
#: Why a member is left out that no program meant as a part of a sample.
A_FOLDER, NOT_A_FILE, NO_NAME = "a folder", "not a regular file", "a name that is not a key and extension"
CAN_HOLD_CODE = "a format that can hold code"

_MAX_HEADER_BYTES = 1 << 20  # a long-name or pax header beyond this is an attack, not a name
_MAX_NAME_BYTES = 4096  # the longest path that Linux knows
_NAMING = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_IGNORED = (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK)
_SPARSE_MORE, _SPARSE_LAST = 482, 504  # where the old sparse header and its extensions say that another follows
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # and what is not UTF-8, which Python reads as surrogates
_UPWARDS = re.compile(r"^/|(^|[/\\])\.\.($|[/\\])")
_METADATA = re.compile(r"__[^/]*__($|/)")  # what webdataset passes over
_KEY_AND_EXTENSION = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")


class Unreadable(DataError):
    """These bytes are no tar, or one that is made to do harm."""


class OpenTar(Protocol):
    """A tar, open from front to back."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar that may be read."""

    key: str  #: of its sample
    extension: str  #: all after the first dot of the file's name, in lower case
    offset: int  #: of its bytes in the tar
    size: int  #: bytes


def key_and_extension(name: str) -> tuple[str, str] | None:
    """What webdataset takes for a member's key and, in lower case, its extension; None where it is not safe or neither.

    Not safe are absolute names, `..`, control characters and what is not UTF-8. Hidden files, and the names that
    webdataset keeps for itself, are no members of samples.
    """
    if _CONTROL.search(name) or _UPWARDS.search(name) or _METADATA.match(name):
        return None
    match = _KEY_AND_EXTENSION.fullmatch(name)
    if match is None or len(name.encode()) > _MAX_NAME_BYTES or _METADATA.fullmatch(match[2]):
        return None
    return match[1], match[2].lower()


def neighbours(members: Iterable[tuple[str, str, T]], skipped: Counter[str]) -> Iterator[tuple[str, dict[str, T]]]:
    """The samples among (key, extension, content): what stands side by side with one key, the first of each name."""
    for key, group in groupby(members, key=lambda member: member[0]):
        found: dict[str, T] = {}
        for _, extension, content in group:
            if extension in found:
                skipped["a duplicate name"] += 1
            else:
                found[extension] = content
        yield key, found


class TarMembers:
    """The members of a tar, in its order; the bytes of one are to be read before the next is asked for, or never.

    Args:
        source: the tar as it comes.
        name: how messages call it.
        max_member_bytes: larger members are passed over without being held.
        skip: moves the source on by so many bytes; None reads them.
    """

    def __init__(
        self, source: OpenTar, name: str, *, max_member_bytes: int, skip: Callable[[int], object] | None = None
    ) -> None:
        self._source, self._name, self._max_member_bytes, self._skip = source, name, max_member_bytes, skip
        self.skipped: Counter[str] = Counter()  #: reason -> how many members were left out for it
        self._position = 0

    def __iter__(self) -> Iterator[Member]:
        for info in self._files():
            # Links, folders and devices have no bytes, whatever their header says of a size.
            size = info.size if info.isreg() or info.type not in tarfile.SUPPORTED_TYPES else 0
            next_header = self._position + size + -size % BLOCK
            named = key_and_extension(info.name)
            reason = _why_not(info, named, self._max_member_bytes)
            if named is None or reason is not None:
                self.skipped[reason or NO_NAME] += 1
            else:
                yield Member(*named, self._position, info.size)
            self._pass(next_header - self._position)

    def read(self, member: Member) -> bytes | None:
        """The bytes of the member that was given last; None where the tar ends before them, which is counted."""
        data = self._exactly(member.size)
        if data is None:
            self.skipped["cut off by the tar's end"] += 1
        return data

    def _files(self) -> Iterator[tarfile.TarInfo]:
        """Headers with the names that the headers before them gave; the payload is still to be read."""
        name, size, sparse = None, None, False
        while (block := self._exactly(BLOCK)) is not None:
            if not any(block):
                return
            info = self._header(block)
            if info is None:
                return
            if info.type in _IGNORED:
                self._pass(info.size + -info.size % BLOCK)
            elif info.type in _NAMING:
                name, size, sparse = self._long_name(info, name, size, sparse)
            else:
                info.name, info.size = name or info.name, info.size if size is None else size
                if sparse or info.type == tarfile.GNUTYPE_SPARSE:
                    # The old kind has its map in blocks between header and bytes.
                    more = info.type == tarfile.GNUTYPE_SPARSE and block[_SPARSE_MORE]
                    while more and (extension := self._exactly(BLOCK)) is not None:
                        more = extension[_SPARSE_LAST]
                    info.sparse = b""  # what `issparse` asks
                yield info
                name, size, sparse = None, None, False
        if self._position < BLOCK:
            raise Unreadable(f"{self._name} is not a tar: it ends within its first {BLOCK} bytes")
        self.skipped["after the truncated end of the tar"] += 1

    def _header(self, block: bytes) -> tarfile.TarInfo | None:
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            if info.size < 0:
                raise tarfile.HeaderError(f"a size of {info.size}")
            return info
        except (tarfile.HeaderError, ValueError) as error:
            if self._position == BLOCK:
                if packed := next((kind for magic, kind in _PACKED.items() if block.startswith(magic)), None):
                    raise Unreadable(f"{self._name} is compressed, so it cannot be read as a tar; unpack it first, "
                                     f"with {packed} -dc") from error  # fmt: skip
                raise Unreadable(f"{self._name} is not a tar: {error}") from error
            self.skipped["after a damaged header"] += 1
            return None

    def _long_name(
        self, info: tarfile.TarInfo, name: str | None, size: int | None, sparse: bool
    ) -> tuple[str | None, int | None, bool]:
        """What a long-name or pax header says of the member after it: its name, its size, and whether it has holes."""
        if info.size > _MAX_HEADER_BYTES:
            raise Unreadable(f"{self._name} has a header that claims {info.size:,} bytes")
        data = self._exactly(info.size + -info.size % BLOCK) or b""
        if info.type == tarfile.GNUTYPE_LONGNAME:
            return data[: info.size].rstrip(b"\x00").decode(errors="surrogateescape"), size, sparse
        position, data = 0, data[: info.size]
        while position < len(data):  # lines of `length key=value`; it ends where they stop making sense
            digits, space, _ = data[position : position + 12].partition(b" ")
            if not space or not digits.isdigit() or not (length := int(digits)) or position + length > len(data):
                break
            key, equals, found = data[position + len(digits) + 1 : position + length - 1].partition(b"=")
            position += length
            if not equals:
                continue
            value = found.decode(errors="surrogateescape")
            if key == b"path":
                name = value.rstrip("/")
            elif key == b"size" and value.isascii() and value.isdigit() and len(value) < 20:
                size = int(value)
            sparse = sparse or key.startswith(b"GNU.sparse")
        return name, size, sparse

    def _exactly(self, size: int) -> bytes | None:
        """So many bytes; None where the tar ends before."""
        parts, missing = [], size
        while missing and (part := self._source.read(min(missing, 1 << 22))):
            parts.append(part)
            missing -= len(part)
        self._position += size - missing
        return None if missing else b"".join(parts)

    def _pass(self, size: int) -> None:
        if self._skip is not None:
            self._skip(size)
            self._position += size
            return
        missing = size
        while missing and (part := self._source.read(min(missing, 1 << 20))):
            missing -= len(part)
        self._position += size - missing


def _why_not(info: tarfile.TarInfo, named: tuple[str, str] | None, max_bytes: int) -> str | None:
    """Why a member is left out, as a few words fit for counting; None where it is not."""
    if info.isdir():
        return A_FOLDER
    if not info.isreg() or info.issparse():
        return NOT_A_FILE
    if named is None:
        return NO_NAME
    if named[1].rsplit(".", 1)[-1] in REFUSED_EXTENSIONS:
        return CAN_HOLD_CODE
    if info.size > max_bytes:
        return f"larger than {max_bytes:,} bytes"
    return None


MAX_MEMBER_BYTES = 4 << 30


@dataclass(slots=True)
class TarIndex:
    """What a tar holds."""

    #: key -> extension -> (offset, size), in the tar's order
    samples: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)  #: reason -> how many members were left out for it


def index_tar(path: Path) -> TarIndex:
    """List the samples of anyone's WebDataset tar by reading its headers.

    Links, devices, sparse files, names with `..` or a leading slash, repeated names and formats that are code are
    left out and counted; a tar that ends early gives the members that are whole. The members of a sample need not be
    side by side, but a second sample of the same key is left out.

    Raises:
        DataError: this is not an uncompressed tar.
    """
    index, end = TarIndex(), path.stat().st_size
    try:
        with path.open("rb") as file:
            members = TarMembers(
                file, str(path), max_member_bytes=MAX_MEMBER_BYTES, skip=lambda size: file.seek(min(size, end), 1)
            )
            index.skipped = members.skipped
            places = ((one.key, one.extension, (one.offset, one.size)) for one in members if _is_whole(one, end, index))
            for key, found in neighbours(places, index.skipped):
                known = index.samples.setdefault(key, found)
                if known is not found and known.keys() & found.keys():
                    index.skipped["a duplicate key"] += len(found)
                elif known is not found:
                    known.update(found)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except Unreadable:
        if not index.samples:
            raise
        index.skipped["unreadable header"] += 1
    return index


def _is_whole(member: Member, end: int, index: TarIndex) -> bool:
    if member.offset + member.size > end:
        index.skipped["cut off by the tar's end"] += 1
        return False
    return True
