"""Reads the tensors of a distributed checkpoint of torch or Megatron-Core, a folder of `.distcp` files, one by one.

Both libraries write the same index (`.metadata`, a pickle), which is read as data; nothing in it is run. It has for
every tensor its dtype, its shape and the chunks it is cut into, and for every chunk a range of bytes of a `.distcp`
file, which holds it as torch.save wrote it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.component import no_component
from nemo_vfm.models.convert.opcodes import MAX_BYTES, ObjectRecord, TensorPlace, counts, read_pickle
from nemo_vfm.models.convert.tensor_source import Box, UnreadTensor, kind_of
from nemo_vfm.models.convert.torch_zip import Window, open_torch_zip

Ints = tuple[int, ...]
_MAX_INSTRUCTIONS = 16_000_000  # some 150,000 chunks
_METADATA = "torch.distributed.checkpoint.metadata"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"
_MCORE = "megatron.core.dist_checkpointing.strategies.torch"
_INDEX = frozenset({f"{_METADATA}.Metadata", f"{_MCORE}.MCoreMetadata"})
_TENSOR, _BYTES, _CHUNK = (f"{_METADATA}.{kind}StorageMetadata" for kind in ("Tensor", "Bytes", "Chunk"))
_KEY, _PLACE = f"{_METADATA}.MetadataIndex", "torch.distributed.checkpoint.filesystem._StorageInfo"
_PROPERTIES = frozenset({f"{_METADATA}.TensorProperties", f"{_SHARDED}.TensorProperties"})
#: Classes that occur in an index. The last ones are kept as they are and never looked at.
_RECORDS: Final = frozenset({
    *_INDEX, _TENSOR, _BYTES, _CHUNK, _KEY, _PLACE, *_PROPERTIES, f"{_METADATA}.StorageMeta",
    f"{_METADATA}._MEM_FORMAT_ENCODING", f"{_SHARDED}.MEM_FORMAT_ENCODING", f"{_MCORE}.MCoreSavePlan",
    "torch.serialization._get_layout", "pathlib.PosixPath", "pathlib._local.PosixPath", "pathlib.WindowsPath",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor, and where its bytes are."""

    offsets: Ints  #: of its first number, along each axis
    sizes: Ints  #: along each axis
    file: str  #: name in the checkpoint's folder
    start: int  #: of its bytes there
    length: int  #: of its bytes, which are a whole file of torch.save


@dataclass(frozen=True, slots=True)
class ChunkedTensor:
    """A tensor in chunks that cover it once."""

    dtype: torch.dtype
    shape: Ints
    chunks: tuple[Chunk, ...]


def read_index(data: bytes) -> tuple[dict[str, ChunkedTensor], list[str]]:
    """(Tensors by name, names of what is kept as bytes: step counts, random states, `_extra_state`) of an index."""
    content, _ = read_pickle(data, records=_RECORDS, most=_MAX_INSTRUCTIONS)
    if not isinstance(content, ObjectRecord) or content.name not in _INDEX:
        raise DataError("its index is not one that torch.distributed.checkpoint writes")
    top = _state(content)
    for key in ("state_dict_metadata", "storage_data"):
        if type(top.get(key)) is not dict:
            raise DataError(f"its index has no {key}")
    places = _places(top["storage_data"])
    tensors: dict[str, ChunkedTensor] = {}
    streams: list[str] = []
    for name, entry in top["state_dict_metadata"].items():
        if type(name) is not str or not isinstance(entry, ObjectRecord) or entry.name not in (_TENSOR, _BYTES):
            raise DataError(f"its index lists {str(name)[:200]!r} as something else than a tensor or a stream of bytes")
        if entry.name == _TENSOR:
            tensors[name] = _tensor(name, _state(entry), places)
        else:
            streams.append(name)
            places.pop((name, None), None)
    if places:
        raise DataError(f"its index places {next(iter(places))[0][:200]!r}, a chunk of no tensor that it lists")
    return tensors, streams


def _state(record: ObjectRecord) -> dict[str, Any]:
    if type(record.state) is not dict:
        raise DataError(f"its index has a {record.name.rpartition('.')[2]} without values")
    return record.state


_Places = dict[tuple[str, Ints | None], tuple[str, int, int]]


def _places(stored: Mapping[object, object]) -> _Places:
    """(name, offsets of the chunk or None) -> (file, start, length)."""
    found: _Places = {}
    for key, value in stored.items():
        if not (
            isinstance(key, ObjectRecord)
            and key.name == _KEY
            and isinstance(value, ObjectRecord)
            and value.name == _PLACE
        ):
            raise DataError("its index places something in a way that torch.distributed.checkpoint does not")
        name, offset = _state(key).get("fqn"), _state(key).get("offset")
        if type(name) is not str:
            raise DataError("its index places something without a name")
        at = (name, None if offset is None else counts(offset, "index"))
        if at in found:
            raise DataError(f"its index places the chunk of {name[:200]} at {at[1]} twice")
        state = _state(value)
        file, start, length = state.get("relative_path"), state.get("offset"), state.get("length")
        if state.get("transform_descriptors"):
            raise DataError(f"{name[:200]} is stored through an extension, such as compression, which is not read")
        if type(file) is not str or type(start) is not int or type(length) is not int or start < 0 or length < 0:
            raise DataError(f"its index does not say in which bytes of which file {name[:200]} is")
        found[at] = file, start, length
    return found


def _tensor(name: str, state: Mapping[str, object], places: _Places) -> ChunkedTensor:
    shape, chunks = counts(state.get("size"), "index"), state.get("chunks")
    if type(chunks) is not list:
        raise DataError(f"its index lists no chunks of {name[:200]}")
    found = []
    for chunk in chunks:
        if not isinstance(chunk, ObjectRecord) or chunk.name != _CHUNK:
            raise DataError(f"its index lists a chunk of {name[:200]} that is none")
        offsets, sizes = (counts(_state(chunk).get(key), "index") for key in ("offsets", "sizes"))
        if (name, offsets) not in places:
            raise DataError(f"its index does not place the chunk of {name[:200]} at {offsets}, or lists it twice")
        found.append(Chunk(offsets, sizes, *places.pop((name, offsets))))
    _require_covered(name, shape, found)
    properties = state.get("properties")
    told = properties.state if isinstance(properties, ObjectRecord) and properties.name in _PROPERTIES else None
    if type(told) is not tuple or not told or not isinstance(told[0], torch.dtype):
        raise DataError(f"its index does not say the dtype of {name[:200]}")
    return ChunkedTensor(told[0], shape, tuple(found))


def _require_covered(name: str, shape: Ints, chunks: Iterable[Chunk]) -> None:
    """Every number lies in exactly one chunk: as many as there are in all, and none twice."""
    for chunk in chunks:
        if not len(chunk.offsets) == len(chunk.sizes) == len(shape) or any(
            offset + size > length for offset, size, length in zip(chunk.offsets, chunk.sizes, shape, strict=True)
        ):
            raise DataError(f"a chunk of {name[:200]}, {chunk.sizes} at {chunk.offsets}, is not inside {shape}")
    held = sum(prod(chunk.sizes) for chunk in chunks)
    if held != prod(shape):
        raise DataError(f"the chunks of {name[:200]} hold {held:,} numbers, and its shape {shape} has {prod(shape):,}")
    # Only those are compared that share a range of the first axis on which chunks differ; all, where none does.
    filled = [chunk for chunk in chunks if prod(chunk.sizes)]
    axis = next((axis for axis in range(len(shape)) if len({chunk.offsets[axis] for chunk in filled}) > 1), None)
    open_: list[Chunk] = []
    for chunk in filled if axis is None else sorted(filled, key=lambda chunk: chunk.offsets[axis]):
        if axis is not None:
            open_ = [one for one in open_ if one.offsets[axis] + one.sizes[axis] > chunk.offsets[axis]]
        for one in open_:
            if all(a < b + m and b < a + n for a, n, b, m in zip(
                one.offsets, one.sizes, chunk.offsets, chunk.sizes, strict=True
            )):  # fmt: skip
                raise DataError(f"two chunks of {name[:200]} overlap, at {one.offsets} and at {chunk.offsets}")
        open_.append(chunk)


INDEX, SUFFIX = ".metadata", ".distcp"
_BELOW = ("", "weights", "model")  # NeMo 2 keeps the weights below `weights`, Cosmos below `model`
_READ = frozenset({INDEX, "metadata.json"})
_MAX_OPEN = 64


def checkpoint_in(folder: Path) -> Path | None:
    """Where the distributed checkpoint is: here, or in the folder below in which NeMo or Cosmos keeps it; else None."""
    return next((folder / name for name in _BELOW if (folder / name / INDEX).is_file()), None)


def is_zarr(folder: Path) -> bool:
    """Whether it is a checkpoint of Megatron-Core in its former format, a folder of arrays for each tensor."""
    return any(next((folder / name).glob("*/.zarray"), None) is not None for name in _BELOW)


@no_component
class DcpFolder:
    """The tensors of a distributed checkpoint; to be used in a `with`.

    Args:
        folder: with `.metadata` and `.distcp` files.
    """

    def __init__(self, folder: Path) -> None:
        index = folder / INDEX
        if not index.is_file():
            raise UserError(f"{folder} has no {INDEX}, so it is not a distributed checkpoint of torch")
        if index.stat().st_size > MAX_BYTES:
            raise DataError(f"{INDEX} has {index.stat().st_size:,} bytes; an index has at most {MAX_BYTES:,}")
        tensors, streams = read_index(index.read_bytes())
        self.folder, self._open = folder, dict[str, BinaryIO]()
        self.tensors = {name: UnreadTensor(kind_of(one.dtype), one.shape, partial(self._read, name, one))
                        for name, one in tensors.items()}  # fmt: skip
        files = {chunk.file for tensor in tensors.values() for chunk in tensor.chunks}
        self._sizes: dict[str, int] = {}
        for name in files:  # of the folder's own files, whatever their names say
            if name != Path(name).name or not name.endswith(SUFFIX) or not (folder / name).is_file():
                raise DataError(f"its index names the file {name[:200]!r}, but the folder has no such {SUFFIX} file")
            self._sizes[name] = (folder / name).stat().st_size
        # Every chunk fits its bytes, and no byte is of two chunks: so tensors together are no larger than the files.
        spans: dict[str, list[tuple[int, int, str]]] = {file: [] for file in self._sizes}
        for name, tensor in tensors.items():
            for chunk in tensor.chunks:
                if prod(chunk.sizes) * tensor.dtype.itemsize > chunk.length:
                    raise DataError(f"a chunk of {name[:200]}, {tensor.dtype} {chunk.sizes}, is to lie in "
                                    f"{chunk.length:,} bytes, which are too few")  # fmt: skip
                spans[chunk.file].append((chunk.start, chunk.start + chunk.length, name))
        for file, taken in spans.items():
            taken.sort()
            for (_, end, one), (start, _, other) in pairwise(taken):
                if start < end:
                    raise DataError(f"{file}: {one[:200]} and {other[:200]} are in the same bytes")
            if taken and taken[-1][1] > (size := self._sizes[file]):
                raise DataError(f"{file} has {size:,} bytes, and {taken[-1][2][:200]} is to end at {taken[-1][1]:,}")
        beside = {path.name for path in folder.iterdir() if path.is_file()} - files - _READ
        #: Streams of bytes and files that are not read.
        self.others = (*streams, *sorted(beside))

    def __enter__(self) -> "DcpFolder":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()

    def _read(self, name: str, tensor: ChunkedTensor, box: Box | None = None) -> Tensor:
        """All of a tensor, or a box of it, for which only the chunks that it touches are read."""
        if box is None:
            if len(tensor.chunks) == 1 and tensor.chunks[0].sizes == tensor.shape and 0 not in tensor.shape:
                return self._chunk(name, tensor, tensor.chunks[0]).contiguous()
            box = tuple((0, length) for length in tensor.shape)
        part = torch.empty([stop - start for start, stop in box], dtype=tensor.dtype)
        for chunk in tensor.chunks:
            spans = [(max(start, at), min(stop, at + size))
                     for (start, stop), at, size in zip(box, chunk.offsets, chunk.sizes, strict=True)]  # fmt: skip
            if all(first < last for first, last in spans):
                here = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(spans, box, strict=True))
                there = tuple(slice(a - at, b - at) for (a, b), at in zip(spans, chunk.offsets, strict=True))
                part[here] = self._chunk(name, tensor, chunk)[there]
        return part

    def _chunk(self, name: str, tensor: ChunkedTensor, chunk: Chunk) -> Tensor:
        try:
            if chunk.file not in self._open:
                while len(self._open) >= _MAX_OPEN:
                    self._open.pop(next(iter(self._open))).close()
                self._open[chunk.file] = (self.folder / chunk.file).open("rb")
            opened = open_torch_zip(Window(self._open[chunk.file], chunk.start, chunk.length))
            found = opened.content
            if not isinstance(found, TensorPlace) or found.dtype != tensor.dtype or found.shape != chunk.sizes:
                kind = f"{found.dtype} {found.shape}" if isinstance(found, TensorPlace) else type(found).__name__
                raise DataError(f"the index says {tensor.dtype} {chunk.sizes}, but found {kind}")
            return opened.tensor(found)
        except DataError as error:
            raise DataError(f"{chunk.file}, {name[:200]} at {chunk.offsets}: {error}") from error
