"""Gives tensors of foreign files one by one, with shapes and dtypes that are known before anything is read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.opcodes import TensorPlace
from nemo_vfm.models.convert.torch_zip import TorchZip
from nemo_vfm.parallel.checkpoint import tensor_file

#: Of a tensor, along each axis: the first place and the one after the last.
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What is known of a tensor that has not been read, with the methods that safetensors gives a slice."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def get_dtype(self) -> str:
        """By the name that safetensors has for it; torch's own where it has none."""
        return tensor_file.dtype_name(self.dtype) if self.dtype in tensor_file.DTYPES.values() else str(self.dtype)


class TensorSource(Protocol):
    """Tensors by name, each read when it is asked for. A file of safetensors is one, too."""

    def keys(self) -> list[str]:
        """Names."""

    def get_slice(self, name: str) -> TensorHeader:
        """The shape and the dtype of a tensor, without reading it."""

    def get_tensor(self, name: str) -> Tensor:
        """All of a tensor."""


class ZipSource:
    """The tensors of an opened file of torch.save."""

    def __init__(self, file: TorchZip, places: Mapping[str, TensorPlace]) -> None:
        self._file, self._places = file, places

    def keys(self) -> list[str]:
        return list(self._places)

    def get_slice(self, name: str) -> TensorHeader:
        return TensorHeader(self._places[name].dtype, self._places[name].shape)

    def get_tensor(self, name: str) -> Tensor:
        """All of a tensor, contiguous; what was read before is let go."""
        return self._file.alone(self._places[name]).contiguous()


class Unread(Mapping[str, Tensor]):
    """Tensors by name, to be written one after another.

    Args:
        names: here -> in the source.
        source: of the tensors.

    Raises:
        DataError: safetensors has no such dtype.
    """

    def __init__(self, names: Mapping[str, str], source: TensorSource) -> None:
        self._names, self._source = names, source
        for name, there in names.items():
            if (kind := source.get_slice(there).get_dtype()) not in tensor_file.DTYPES:
                raise DataError(f"{name[:200]} is of the dtype {kind}, which safetensors does not have")

    def __getitem__(self, name: str) -> Tensor:
        """All of a tensor, read now."""
        return self._source.get_tensor(self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._source.get_slice(self._names[name]).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        return tensor_file.DTYPES[self._source.get_slice(self._names[name]).get_dtype()]
