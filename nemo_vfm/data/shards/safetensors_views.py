"""Reads the tensors of a safetensors member as views of its bytes: nothing is copied or executed."""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError

_MAX_HEADER_BYTES = 1 << 20
_PIECE = 1 << 20  # bytes looked at at a time, while they are in the processor's cache
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
#: Of each tensor: dtype, shape, first byte and end.
_Places = Mapping[str, tuple[torch.dtype, tuple[int, ...], int, int]]
_NUMPY = {torch.float64: np.float64, torch.float32: np.float32, torch.float16: np.float16}


class TensorView(NamedTuple):
    """A tensor where it lies."""

    dtype: torch.dtype  #: of the numbers
    shape: tuple[int, ...]  #: of the tensor
    data: NDArray[np.uint8]  #: its bytes, (n,) uint8; read-only

    def is_finite(self) -> bool:
        """Whether no number is NaN or infinite. In numpy, one thread: torch's would wait for each other in a worker."""
        kind = _NUMPY.get(self.dtype)
        for begin in range(0, len(self.data), _PIECE):
            data = self.data[begin : begin + _PIECE]
            if kind is not None:
                is_finite = bool(np.isfinite(data.view(kind)).all())
            elif self.dtype == torch.bfloat16:  # numpy has none; all exponent bits set is NaN or infinity
                is_finite = not ((data.view(np.uint16) & 0x7F80) == 0x7F80).any()
            else:
                return True
            if not is_finite:
                return False
        return True


def stored_tensors(data: bytes) -> dict[str, TensorView]:
    """The tensors of a safetensors file.

    Raises:
        DataError: these are not the bytes of one, or a tensor's shape does not fit its place.
    """
    header, places = _parse_header(data)
    content = np.frombuffer(data, np.uint8, offset=len(header))
    return {name: TensorView(dtype, shape, content[start:end]) for name, (dtype, shape, start, end) in places.items()}


def header_and_tensors(data: bytes) -> tuple[bytes, dict[str, TensorView]] | None:
    """What precedes the tensors of a file, and they in file order; None where something lies between them."""
    header, places = _parse_header(data)
    order = sorted(places, key=lambda name: places[name][2:])
    edges = [0, *(edge for name in order for edge in places[name][2:]), len(data) - len(header)]
    if edges[::2] != edges[1::2]:
        return None
    tensors = stored_tensors(data)
    return header, {name: tensors[name] for name in order}


def _parse_header(data: bytes) -> tuple[bytes, _Places]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise DataError(f"{len(data):,} bytes are not a safetensors file: its header claims {length:,} bytes")
    return data[: 8 + length], _places(data[8 : 8 + length], len(data) - 8 - length)


@lru_cache(maxsize=256)
def _places(header: bytes, size: int) -> _Places:
    """Headers repeat from sample to sample of one shape, so each is parsed once."""
    found = {}
    try:
        for name, fields in json.loads(header).items():
            if name == "__metadata__":
                continue
            dtype, shape = _DTYPES[fields["dtype"]], fields["shape"]
            start, end = fields["data_offsets"]
            if not all(type(number) is int and number >= 0 for number in [*shape, start, end]):
                raise ValueError(f"shape {shape} at {start} to {end}")
            if not start <= end <= size or end - start != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{dtype} {shape} does not fill bytes {start} to {end} of {size}")
            found[name] = dtype, tuple(shape), start, end
        return MappingProxyType(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"a safetensors header is damaged: {error}") from error
