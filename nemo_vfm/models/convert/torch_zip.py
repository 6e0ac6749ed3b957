"""Reads the values and, on request, the tensors of a file of torch.save by offset; nothing in it is run.

Since 1.6 torch writes a zip with uncompressed members: `data.pkl` lists the content, `data/0`, `data/1` and so on hold
the numbers. Sizes and places are checked before any memory is allocated, so what is read is never larger than the file.
"""

import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.opcodes import MAX_BYTES, TensorPlace, read_pickle
from nemo_vfm.models.convert.tensor_source import Box

_LOCAL_HEADER = 30  # bytes before a member's name; see the zip format, section 4.3.7
_ENCRYPTED = 0x1
_MAX_TIED = 4  # how often each byte may be used, on average
_TORCHSCRIPT = ("this is a TorchScript program, which is code. The tokenizer of a published video model is in the "
                "folder vae of its diffusers pipeline, which task.codec=diffusers takes; of a model of your own, "
                "export the state_dict")  # fmt: skip


class Window(io.RawIOBase):
    """A read-only view of `size` bytes from `start`.

    The parsers of the standard library read a header's length from the file and then that many bytes at once; here
    such a read is refused beyond `cap` bytes. Content is read by `fill`, into memory whose size the caller has judged.

    Args:
        file: opened for reading bytes; shared, never closed from here.
        cap: most bytes of one read.
    """

    def __init__(self, file: BinaryIO, start: int, size: int, *, cap: int = 8 << 20) -> None:
        super().__init__()
        self.file, self.start, self.size, self.cap = file, start, size, cap
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Counted from the window's start."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """As of a file; never before the start."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError(f"byte {base + offset} lies before the file's start")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """At most to the window's end."""
        left = max(0, self.size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > self.cap:
            raise DataError(f"a header claims {wanted:,} bytes, more than the {self.cap:,} that are read at once")
        self.file.seek(self.start + self._at)
        data = self.file.read(wanted)
        self._at += len(data)
        return data

    def fill(self, start: int, size: int) -> bytearray:
        """`size` bytes from `start`, which must lie inside."""
        if start < 0 or size < 0 or start + size > self.size:
            raise DataError(f"bytes {start:,} to {start + size:,} are asked for, but there are {self.size:,}")
        data = bytearray(size)
        self.file.seek(self.start + start)
        if self.file.readinto(data) != size:  # type: ignore[attr-defined]
            raise DataError(f"the file ends before byte {start + size:,}")
        return data


@dataclass(frozen=True, slots=True)
class _ZipMember:
    start: int
    size: int
    crc: int


@dataclass(slots=True)
class TorchZip:
    """An opened file of torch.save."""

    content: object  #: what was saved, with a `TensorPlace` for each tensor
    left_out: tuple[str, ...]  #: names in it that are code; an inert mark stands for each
    _window: Window
    _members: Mapping[str, _ZipMember]
    _storages: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def tensors(self, places: Mapping[str, TensorPlace]) -> dict[str, Tensor]:
        """The tensors themselves. Tied weights share their memory; a thousand views of one storage are an attack."""
        num_bytes = sum(place.num_bytes for place in places.values())
        if num_bytes > _MAX_TIED * self._window.size:
            raise DataError(f"its tensors ask for {num_bytes:,} bytes one by one, the file has {self._window.size:,}")
        return {name: self.tensor(place) for name, place in places.items()}

    def tensor(self, place: TensorPlace) -> Tensor:
        """The tensor itself, a view of its storage; storages are read once."""
        storage, num_bytes = place.storage, place.storage.num_bytes
        known = (storage.key, num_bytes)
        if known not in self._storages:
            member = self._members.get(f"data/{storage.key}")
            if member is None or member.size != num_bytes:
                there = "is missing" if member is None else f"has {member.size:,} bytes"
                raise DataError(f"storage {storage.key} {there}; the file's list says {num_bytes:,} bytes")
            read = self._window.fill(member.start, member.size)
            if zlib.crc32(read) != member.crc:
                raise DataError(f"storage {storage.key} is damaged: its bytes do not match their checksum")
            empty = torch.empty(0, dtype=torch.uint8)
            self._storages[known] = torch.frombuffer(read, dtype=torch.uint8) if read else empty
        data, dtype = self._storages[known], place.dtype
        whole = data[: len(data) // dtype.itemsize * dtype.itemsize]
        # Any byte but 0 and 1 is a boolean that no program expects.
        typed = whole != 0 if dtype == torch.bool else whole.view(dtype)
        return typed.as_strided(place.shape, place.stride, place.offset)

    def read_tensor(self, place: TensorPlace, box: Box | None = None) -> Tensor:
        """The same or a box of it, contiguous, where one is asked for after another: only its own storage is kept."""
        if (place.storage.key, place.storage.num_bytes) not in self._storages:
            self._storages.clear()
        return self.tensor(place)[tuple(slice(*span) for span in box or ())].contiguous()


def open_torch_zip(window: Window, *, leave_out: bool = False) -> TorchZip:
    """List what a file of torch.save holds."""
    members = _members(window)
    if "constants.pkl" in members or any(name.startswith("code/") for name in members):
        raise DataError(_TORCHSCRIPT)
    listing = members.get("data.pkl")
    if listing is None:
        raise DataError("this zip has no data.pkl, so torch.save did not write it")
    if listing.size > MAX_BYTES:
        raise DataError(f"its pickle has {listing.size:,} bytes; a list of tensors has at most {MAX_BYTES:,}")
    order = members.get("byteorder")
    if order is not None and bytes(window.fill(order.start, min(order.size, 16))) != b"little":
        raise DataError("its numbers are not little-endian; save it again on a little-endian machine")
    content, left_out = read_pickle(bytes(window.fill(listing.start, listing.size)), leave_out=leave_out)
    return TorchZip(content, left_out, window, members)


def _members(window: Window) -> dict[str, _ZipMember]:
    """Name behind the archive's own folder -> place."""
    try:
        with zipfile.ZipFile(window) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, RecursionError) as error:
        raise DataError(f"this is not a complete zip: {error}") from error
    found: dict[str, _ZipMember] = {}
    for info in listed:
        name = info.filename.partition("/")[2]
        if name in found:
            raise DataError(f"the zip holds {info.filename[:200]!r} twice")
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.file_size != info.compress_size
            or info.flag_bits & _ENCRYPTED
        ):
            raise DataError(f"{info.filename[:200]!r} is packed or encrypted in the zip; torch.save stores it as it is")
        header = window.fill(info.header_offset, _LOCAL_HEADER)
        if header[:4] != b"PK\x03\x04":
            raise DataError(f"the zip says that {info.filename[:200]!r} begins where no member does")
        names, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        found[name] = _ZipMember(info.header_offset + _LOCAL_HEADER + names + extra, info.file_size, info.CRC)
    # No two share bytes, and none goes beyond the end: so together they are no larger than the file.
    end = 0
    for name, member in sorted(found.items(), key=lambda item: item[1].start):
        if member.start < end:
            raise DataError(f"{name[:200]!r} shares bytes of the zip with another member")
        end = member.start + member.size
        if end > window.size:
            raise DataError(f"{name[:200]!r} continues beyond the zip's end")
    return found
