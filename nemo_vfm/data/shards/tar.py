# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Lists where the members of a tar's samples lie, and writes tar headers.

Nothing is ever extracted: a name in a tar is text to us, never a path. Only regular files are listed.
"""

import io
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nemo_vfm.core.errors import DataError

BLOCK = tarfile.BLOCKSIZE
MAX_MEMBER_BYTES = 4 << 30
_MAX_HEADER_READ = 1 << 20  # a long-name or pax header beyond this is an attack, not a name
_NAME = re.compile(r"((?:[^./\x00-\x1f][^./\x00-\x1f]*/)*[^./\x00-\x1f]+)\.([A-Za-z0-9_.-]{1,64})")
#: Formats whose decoders run code or may; their bytes are not listed, so nobody can decode them.
REFUSED_EXTENSIONS = frozenset(
    {"pkl", "pickle", "pyd", "pth", "pt", "ckpt", "bin", "dill", "joblib", "py", "pyc", "so"}
)


@dataclass(slots=True)
class TarIndex:
    """What a tar holds.

    Args:
        samples: key -> extension -> (offset, size), in the tar's order.
        skipped: reason -> how many members were left out for it.
    """

    samples: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)


def header(name: str, size: int) -> bytes:
    """The 512 bytes before a member: no time, owner or machine in them, so equal members give equal bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, 0, 0o644
    return info.tobuf(tarfile.USTAR_FORMAT)


def padding(size: int) -> bytes:
    """The zeros after a member of this size."""
    return bytes(-size % BLOCK)


def index_tar(path: Path) -> TarIndex:
    """List the samples of anyone's WebDataset tar by reading its headers.

    Links, devices, sparse files, names with `..` or a leading slash, repeated names and formats that are code are
    left out and counted; a tar that ends early gives the members that are whole.

    Raises:
        DataError: this is not an uncompressed tar.
    """
    index = TarIndex()
    end = path.stat().st_size
    with _CappedFile(path, "rb") as file:
        try:
            # The name of the mode matters: "r:" never guesses a compression, so there is no bomb to unpack.
            with tarfile.open(fileobj=file, mode="r:", errorlevel=0) as tar:
                for info in _members(tar, path, index):
                    _add(index, info, end)
        except (tarfile.TarError, ValueError, OSError, RecursionError, OverflowError) as error:
            if not index.samples:
                raise DataError(f"{path} is not a tar that can be read (compressed tars are not): {error}") from error
            index.skipped["unreadable header"] += 1
    return index


class _CappedFile(io.FileIO):
    """A file that refuses to be read in one piece larger than any sane header: tarfile reads long names whole."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0 or size > _MAX_HEADER_READ:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        return super().read(size) or b""


def _members(tar: tarfile.TarFile, path: Path, index: TarIndex) -> Iterator[tarfile.TarInfo]:
    """The members up to the end, or up to where the headers stop making sense."""
    last = -1
    while True:
        try:
            info = tar.next()
        except tarfile.ReadError as error:
            if last < 0:
                raise
            index.skipped[f"after the tar's early end ({error})"] += 1
            return
        if info is None:
            return
        # A header with a negative size walks backwards for ever.
        if info.offset <= last or info.size < 0:
            raise tarfile.ReadError(f"{path} goes backwards at byte {info.offset}")
        last = info.offset
        yield info


def _add(index: TarIndex, info: tarfile.TarInfo, end: int) -> None:
    match = name_of_member(info.name)
    reason = why_not(info, match, MAX_MEMBER_BYTES)
    if reason is None and info.offset_data + info.size > end:
        reason = "cut off by the tar's end"
    if reason is None and match is not None:
        members = index.samples.setdefault(match[1], {})
        if match[2] in members:
            reason = "a name twice"
        else:
            members[match[2]] = (info.offset_data, info.size)
    if reason is not None:
        index.skipped[reason] += 1


def name_of_member(name: str) -> re.Match[str] | None:
    """Key and extension as groups 1 and 2; None where a name is no such thing, or more than one."""
    return _NAME.fullmatch(name)


def why_not(info: tarfile.TarInfo, match: re.Match[str] | None, max_bytes: int) -> str | None:
    """Why a member is left out, as a few words fit for counting; None where it is not."""
    if info.isdir():
        return "a folder"
    if not info.isreg() or info.issparse():
        return "not a regular file"
    if match is None:
        return "a name that is no key and extension"
    if match[2].rsplit(".", 1)[-1].lower() in REFUSED_EXTENSIONS:
        return "a format that can hold code"
    if info.size > max_bytes:
        return f"larger than {max_bytes:,} bytes"
    return None
