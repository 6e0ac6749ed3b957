"""Describes tensors of foreign files, whose shapes and dtypes are known before anything is read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.parallel.checkpoint import tensor_file

#: Of a tensor, along each axis: the first place and the one after the last.
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class UnreadTensor:
    """A tensor that has not been read."""

    kind: str  #: its dtype, by the name that safetensors has for it; torch's own where it has none
    shape: tuple[int, ...]
    read: Callable[..., Tensor]  #: gives all of it or, called with a `TensorBox`, that part


def kind_of(dtype: torch.dtype) -> str:
    """See `UnreadTensor`."""
    return tensor_file.dtype_name(dtype) if dtype in tensor_file.DTYPES.values() else str(dtype)


def mapped_tensors(file: tensor_file.MappedFile) -> dict[str, UnreadTensor]:
    """The tensors of an open file of safetensors."""

    def read(name: str, box: Box | None = None) -> Tensor:
        return file.get_tensor(name) if box is None else file.part(name, tuple(slice(*span) for span in box))

    headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    return {name: UnreadTensor(header.get_dtype(), tuple(header.get_shape()), partial(read, name))
            for name, header in headers.items()}  # fmt: skip


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each read when it is asked for."""

    def __init__(self, tensors: Mapping[str, UnreadTensor]) -> None:
        self._tensors = tensors
        for name, stored in tensors.items():
            if stored.kind not in tensor_file.DTYPES:
                raise DataError(f"{name[:200]} is of the dtype {stored.kind}, which safetensors does not have")

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        """Whether there is one, without reading it."""
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return tensor_file.DTYPES[self._tensors[name].kind]
