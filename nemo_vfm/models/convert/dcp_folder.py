"""Reads the tensors of a distributed checkpoint of torch or Megatron-Core, a folder of `.distcp` files, one by one."""

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.component import no_component
from nemo_vfm.models.convert.dcp_index import Chunk, ChunkedTensor, read_index
from nemo_vfm.models.convert.opcodes import MAX_BYTES
from nemo_vfm.models.convert.places import TensorPlace
from nemo_vfm.models.convert.tensor_source import Box, TensorHeader
from nemo_vfm.models.convert.torch_zip import open_torch_zip
from nemo_vfm.models.convert.window import Window

INDEX, SUFFIX = ".metadata", ".distcp"
_BELOW = ("", "weights", "model")  # NeMo 2 keeps the weights below `weights`, Cosmos below `model`
_READ = frozenset({INDEX, "metadata.json"})
_MOST_OPEN = 64


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

    Raises:
        UserError: there is no index.
        DataError: the index names code or does not fit the files.
    """

    def __init__(self, folder: Path) -> None:
        index = folder / INDEX
        if not index.is_file():
            raise UserError(f"{folder} has no {INDEX}, so it is not a distributed checkpoint of torch")
        if index.stat().st_size > MAX_BYTES:
            raise DataError(f"{INDEX} has {index.stat().st_size:,} bytes; an index has at most {MAX_BYTES:,}")
        found = read_index(index.read_bytes())
        self.folder, self._tensors, self._open = folder, found.tensors, dict[str, BinaryIO]()
        files = {chunk.file for tensor in found.tensors.values() for chunk in tensor.chunks}
        self._sizes = {name: _size(folder, name) for name in files}
        _require_apart(found.tensors, self._sizes)
        beside = {path.name for path in folder.iterdir() if path.is_file()} - files - _READ
        #: Streams of bytes and files that are not read.
        self.others = (*found.streams, *sorted(beside))

    def __enter__(self) -> "DcpFolder":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()

    def keys(self) -> list[str]:
        """Names of its tensors."""
        return list(self._tensors)

    def get_slice(self, name: str) -> TensorHeader:
        """The shape and the dtype of a tensor, without reading it."""
        return TensorHeader(self._tensors[name].dtype, self._tensors[name].shape)

    def get_tensor(self, name: str) -> Tensor:
        """All of a tensor, put together from its chunks.

        Raises:
            DataError: a chunk is damaged, or not what the index says.
        """
        tensor = self._tensors[name]
        if len(tensor.chunks) == 1 and tensor.chunks[0].sizes == tensor.shape and 0 not in tensor.shape:
            return self._chunk(name, tensor, tensor.chunks[0]).contiguous()
        return self.get_box(name, tuple((0, length) for length in tensor.shape))

    def get_box(self, name: str, box: Box) -> Tensor:
        """A box of a tensor, for which only the chunks that it touches are read.

        Args:
            name: of the tensor.
            box: along each axis, the first place and the one after the last.

        Raises:
            DataError: a chunk is damaged, or not what the index says.
        """
        tensor = self._tensors[name]
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
            opened = open_torch_zip(Window(self._file(chunk.file), chunk.start, chunk.length))
            found = opened.content
            if not isinstance(found, TensorPlace) or found.dtype != tensor.dtype or found.shape != chunk.sizes:
                raise DataError(f"the index says {tensor.dtype} {chunk.sizes}, but found {_told(found)}")
            return opened.tensor(found)
        except DataError as error:
            raise DataError(f"{chunk.file}, {name[:200]} at {chunk.offsets}: {error}") from error

    def _file(self, name: str) -> BinaryIO:
        if name not in self._open:
            while len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[name] = (self.folder / name).open("rb")
        return self._open[name]


def _told(found: object) -> str:
    return f"{found.dtype} {found.shape}" if isinstance(found, TensorPlace) else type(found).__name__


def _size(folder: Path, name: str) -> int:
    """Of one of the folder's own files, whatever its name says."""
    if name != Path(name).name or not name.endswith(SUFFIX) or not (folder / name).is_file():
        raise DataError(f"its index names the file {name[:200]!r}, but the folder has no such {SUFFIX} file")
    return (folder / name).stat().st_size


def _require_apart(tensors: Mapping[str, ChunkedTensor], sizes: Mapping[str, int]) -> None:
    """Every chunk fits its bytes, and no byte is of two chunks: so tensors together are no larger than the files."""
    spans: dict[str, list[tuple[int, int, str]]] = {file: [] for file in sizes}
    for name, tensor in tensors.items():
        for chunk in tensor.chunks:
            spans[chunk.file].append(_span(name, tensor, chunk))
    for file, taken in spans.items():
        taken.sort()
        for (_, end, one), (start, _, other) in pairwise(taken):
            if start < end:
                raise DataError(f"{file}: {one[:200]} and {other[:200]} are in the same bytes")
        if taken and taken[-1][1] > sizes[file]:
            raise DataError(f"{file} has {sizes[file]:,} bytes, and {taken[-1][2][:200]} is to end at {taken[-1][1]:,}")


def _span(name: str, tensor: ChunkedTensor, chunk: Chunk) -> tuple[int, int, str]:
    if prod(chunk.sizes) * tensor.dtype.itemsize > chunk.length:
        raise DataError(f"a chunk of {name[:200]}, {tensor.dtype} {chunk.sizes}, is to lie in {chunk.length:,} "
                        f"bytes, which are too few")  # fmt: skip
    return chunk.start, chunk.start + chunk.length, name
