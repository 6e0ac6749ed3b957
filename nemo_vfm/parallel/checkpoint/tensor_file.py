"""Writes and reads safetensors files; each number of a header is checked before memory is allocated for it.

A hash in a manifest finds accidents. It cannot find a malicious file that came together with its manifest. So the
header is read here first, strictly, and the library comes after it.

Files are written here and not by the library. The library holds the interpreter while it writes, which would stop the
training during a save in the background, and it copies once more.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, TypedDict

import torch
from torch import Tensor

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.core.storage.files import sync
from nemo_vfm.core.types.json_value import Json, each_key_once

# About 130 bytes a tensor: room for 120,000 tensors, and some 300 MB of Python objects at the worst.
MAX_HEADER_BYTES = 16 << 20
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
#: Names of dtypes, in the order in which safetensors lays tensors out: each then begins where its dtype may.
DTYPES = {
    "U64": torch.uint64, "I64": torch.int64, "F64": torch.float64, "C64": torch.complex64, "F32": torch.float32,
    "U32": torch.uint32, "I32": torch.int32, "BF16": torch.bfloat16, "F16": torch.float16, "U16": torch.uint16,
    "I16": torch.int16, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PLACE = {name: number for number, name in enumerate(DTYPES)}
_BLOCK = 4 << 20  # written and hashed while it is still in the processor's cache
# Of one call. Linux caches larger ones in pages of 2 MB, and a virtual machine gives free ones back to its host:
# 0.4 GB/s instead of 3.4 (Firecracker, Linux 6.18, 2026-11).
_WRITE = 256 << 10


class FileDigest(TypedDict):
    """What a manifest says of a file that was written."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TensorFileHeader:
    """What stands on top of a file: the shape and dtype of each tensor, and texts about the whole."""

    shapes: Mapping[str, tuple[int, ...]]
    about: Mapping[str, str]
    dtypes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PackedTensorFile:
    """A file as it will lie on disk, in memory of its own: whatever becomes of the tensors, this stays."""

    header: bytes
    body: Tensor  #: bytes on the CPU

    @property
    def num_bytes(self) -> int:
        """Of the whole file."""
        return len(self.header) + self.body.numel()


def dtype_name(dtype: torch.dtype) -> str:
    """What safetensors calls it. ValueError if it has no name for it."""
    if dtype not in _NAMES:
        raise ValueError(f"safetensors cannot hold {dtype}; it holds {', '.join(map(str, _NAMES))}")
    return _NAMES[dtype]


def header(
    shapes: Mapping[str, tuple[str, tuple[int, ...]]], about: Mapping[str, str], *, by_name: bool = True
) -> tuple[bytes, dict[str, int]]:  # fmt: skip
    """The header of a file with these dtypes and shapes, and the offset of each tensor after it, in file order.

    Tensors are ordered by dtype, widest first, then by name or, without `by_name`, as given.
    """
    entries: dict[str, Json] = {"__metadata__": dict(sorted(about.items()))} if about else {}
    begin, places = 0, {}
    named = sorted(shapes) if by_name else shapes
    for name in sorted(named, key=lambda name: _PLACE[shapes[name][0]]):
        dtype, shape = shapes[name]
        end = begin + math.prod(shape) * _BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        places[name], begin = begin, end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's bytes, as a file holds them; numpy has no bfloat16, and bytes are bytes."""
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def pack(
    tensors: Mapping[str, Tensor], about: Mapping[str, str], room: Callable[[int], Tensor] | None = None,
) -> PackedTensorFile:  # fmt: skip
    """A copy of tensors as the file that `write` writes.

    Args:
        room: gives so many bytes on the CPU, which stay taken until the file is written; pinned ones are filled
            from a GPU at its full speed. None allocates.
    """
    shapes = {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
    head, places = header(shapes, about)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    body = torch.empty(num_bytes, dtype=torch.uint8) if room is None else room(num_bytes)
    for name, begin in places.items():
        tensor = tensors[name].detach()
        part = body[begin : begin + tensor.numel() * tensor.element_size()]
        part.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
    for accelerator in {tensor.device for tensor in tensors.values() if tensor.device.type != "cpu"}:
        torch.accelerator.synchronize(accelerator)
    return PackedTensorFile(head, body)


def write(path: Path, packed: PackedTensorFile) -> FileDigest:
    """Write a file and flush it to disk; its hash and size are those of the bytes that were given to the disk."""
    body = memoryview(packed.body.numpy())  # type: ignore[arg-type]
    return write_blocks(path, (packed.header, *(body[at : at + _BLOCK] for at in range(0, len(body), _BLOCK))))


def write_blocks(path: Path, blocks: Iterable[bytes | memoryview], *, beside: bool = False) -> FileDigest:
    """Write bytes as they come; see `write`.

    Args:
        beside: hash in another thread while the disk writes. Not for checkpoints: they may be saved while the
            interpreter shuts down, when no thread can start.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file, ThreadPoolExecutor(1) as other:
        for block in blocks:
            hashed = other.submit(digest.update, block) if beside else None
            _put(file, block)
            if hashed is None:
                digest.update(block)
            else:
                hashed.result()
            size += len(block)
            del block, hashed  # before the next one is read: each may be a tensor of gigabytes
    sync(path)
    return {"sha256": digest.hexdigest(), "bytes": size}


def write_unhashed(path: Path, blocks: Iterable[bytes | memoryview]) -> None:
    """`write_blocks` where nobody asks for the hash, which takes as long as the writing."""
    with path.open("wb") as file:
        for block in blocks:
            _put(file, block)
            del block  # before the next one is read: each may be a tensor of gigabytes
    sync(path)


def _put(file: IO[bytes], block: bytes | memoryview) -> None:
    whole = memoryview(block)
    for begin in range(0, len(whole), _WRITE):
        file.write(whole[begin : begin + _WRITE])


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of a file. CorruptCheckpoint if it is not a whole and honest safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    read_header(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise CorruptCheckpoint(f"{path} is not a readable safetensors file ({error}); copy it again.") from error


def read_header(path: Path) -> TensorFileHeader:
    """The header alone, every claim in it compared with the file's size. CorruptCheckpoint if one is not true."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise ValueError(f"it has {size} bytes but claims a header of {length}")
            found = json.loads(file.read(length), object_pairs_hook=each_key_once)
        if not isinstance(found, dict):
            raise ValueError("its header is not a mapping")
        about = found.pop("__metadata__", {})
        if not isinstance(about, dict) or not all(isinstance(text, str) for text in about.values()):
            raise ValueError("its __metadata__ is not texts by name")
        spans = sorted(_span(name, entry) for name, entry in found.items())
        edges = [0, *(edge for span in spans for edge in span), size - 8 - length]
        # Ends and beginnings alternate; between an end and the next beginning there is nothing.
        if any(end != begin for end, begin in zip(edges[::2], edges[1::2], strict=True)):
            raise ValueError("its tensors overlap, leave gaps, or do not end with the file")
        assert all(a <= b for a, b in pairwise(edges))
        shapes = {name: tuple(entry["shape"]) for name, entry in found.items()}
        return TensorFileHeader(shapes, about, {name: entry["dtype"] for name, entry in found.items()})
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path} is not a readable safetensors file ({error}); copy it again.") from error


def _span(name: str, entry: Any) -> tuple[int, int]:
    """Where a tensor lies, when its dtype and shape fill just that place."""
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    numbers = [*shape, begin, end]
    if not isinstance(shape, list) or len(shape) > 64 or any(type(n) is not int or not 0 <= n < 2**63 for n in numbers):
        raise ValueError(f"{name[:80]!r} has an impossible shape or position")
    if math.prod(max(n, 1) for n in shape) >= 2**63:  # no values, but strides that no integer holds
        raise ValueError(f"{name[:80]!r} has an impossible shape")
    if entry["dtype"] not in _BYTES:
        raise ValueError(f"{name[:80]!r} has an unknown dtype, {str(entry['dtype'])[:20]!r}")
    if begin > end or math.prod(shape) * _BYTES[entry["dtype"]] != end - begin:
        raise ValueError(f"{name[:80]!r} claims {str(shape)[:80]} values in {end - begin} bytes")
    return begin, end


_MAX_BYTES = 64 << 20


class MappedFile:
    """A file of safetensors whose tensors are read one after another, in little memory.

    safetensors maps the file, and every page read stays in memory until the file is unmapped. So it is mapped again
    after every 64 MB; otherwise a file of many gigabytes would end up in memory as a whole.

    Args:
        path: path of the file, which must not change.

    Raises:
        SafetensorError: the file is not safetensors.
        OSError: the file cannot be read, or has changed since it was opened.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._seen = path, _file_stamp(path)
        self._file: Any = None  # safetensors has no type for it
        self._read = 0
        self._open()

    def keys(self) -> list[str]:
        """Names of its tensors."""
        return list(self._file.keys())

    def metadata(self) -> dict[str, str]:
        """The metadata in the header."""
        return dict(self._file.metadata() or {})

    def get_slice(self, name: str) -> Any:
        """The shape and the dtype of a tensor, without reading it."""
        return self._open().get_slice(name)

    def get_tensor(self, name: str) -> Tensor:
        """All of a tensor."""
        tensor: Tensor = self._open().get_tensor(name)
        self._read += tensor.nbytes
        return tensor

    def part(self, name: str, index: tuple[slice, ...]) -> Tensor:
        """A part of a tensor that has dimensions."""
        tensor: Tensor = self._open().get_slice(name)[index]
        self._read += tensor.nbytes
        return tensor

    def close(self) -> None:
        """Unmap the file; tensors read so far stay valid."""
        self._file = None

    def _open(self) -> Any:
        if self._file is None or self._read > _MAX_BYTES:
            from safetensors import safe_open

            if _file_stamp(self.path) != self._seen:
                raise OSError(f"{self.path} changed while it was read")
            self._file, self._read = safe_open(self.path, framework="pt"), 0
        return self._file


def _file_stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
