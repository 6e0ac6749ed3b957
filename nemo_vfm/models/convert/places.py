"""Checks where a file says a tensor lies in a storage; a shape that its storage cannot hold is refused."""

from dataclasses import dataclass
from math import prod
from typing import Final

import torch

from nemo_vfm.core.errors import DataError

_MAX_DIMS = 64
_MAX_LENGTH = 1 << 48
_NAMES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16",
          "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128")  # fmt: skip
#: Name in a pickle -> dtype.
DTYPES: Final[dict[str, torch.dtype]] = {f"torch.{name}": getattr(torch, name) for name in _NAMES}
#: Name of a storage's type in a pickle -> dtype of its numbers; None where a tensor says it.
STORAGES: Final[dict[str, torch.dtype | None]] = {
    "torch.DoubleStorage": torch.float64, "torch.FloatStorage": torch.float32, "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16, "torch.LongStorage": torch.int64, "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16, "torch.CharStorage": torch.int8, "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool, "torch.ComplexFloatStorage": torch.complex64,
    "torch.ComplexDoubleStorage": torch.complex128, "torch.storage.UntypedStorage": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of numbers in the file."""

    key: str  #: its number in the archive
    dtype: torch.dtype | None  #: of the numbers; None where it counts bytes
    count: int  #: how many there are

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return self.count * (1 if self.dtype is None else self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor that has not been read."""

    storage: Storage
    dtype: torch.dtype
    offset: int  #: of its first number, in numbers
    shape: tuple[int, ...]
    stride: tuple[int, ...]  #: steps between neighbours along each axis, in numbers

    @property
    def num_bytes(self) -> int:
        """Its size when it is written out."""
        return prod(self.shape) * self.dtype.itemsize


def tensor_place(
    storage: object, offset: object, shape: object, stride: object, *, dtype: object = None
) -> TensorPlace:
    """The place, once it is certain that every number of the tensor lies in its storage."""
    if not isinstance(storage, Storage):
        raise DataError("its pickle makes a tensor of what is not a storage")
    kind = dtype if isinstance(dtype, torch.dtype) else storage.dtype
    if kind is None:
        raise DataError("its pickle makes a tensor without a dtype")
    place = TensorPlace(storage, kind, _counts((offset,))[0], _counts(shape), _counts(stride))
    # Neither beyond the end, nor more numbers than there are (an axis that repeats the same ones).
    available = storage.num_bytes // kind.itemsize
    if len(place.shape) != len(place.stride):
        raise DataError(f"a tensor of shape {place.shape} comes with {len(place.stride)} strides")
    count = prod(place.shape)
    last = place.offset + sum((length - 1) * step for length, step in zip(place.shape, place.stride, strict=True))
    if count > available or (count and last >= available):
        raise DataError(
            f"a tensor of shape {place.shape} asks for {place.num_bytes:,} bytes from number {place.offset:,} on; "
            f"storage {place.storage.key} has {place.storage.num_bytes:,} bytes"
        )
    return place


def _counts(values: object) -> tuple[int, ...]:
    if not isinstance(values, tuple | list) or len(values) > _MAX_DIMS:
        raise DataError("its pickle gives a tensor's shape as something else than a few counts")
    for value in values:
        if type(value) is not int or not 0 <= value < _MAX_LENGTH:
            raise DataError("its pickle gives a tensor a length that is not a count")
    return tuple(values)
