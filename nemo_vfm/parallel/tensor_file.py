# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Named tensors in, one safetensors file out, and back: each number of a header is judged before memory is asked for.

A hash in a manifest finds accidents. It cannot find a file that was made to do harm together with its manifest, so the
header is read here first, strictly, and the library after it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.core.files import sha256_file, sync
from nemo_vfm.core.types import Json

# About 130 bytes a tensor: room for 120,000 tensors, and some 300 MB of Python objects at the worst.
MAX_HEADER_BYTES = 16 << 20
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Header:
    """What stands on top of a file: the shape of each tensor, and texts about the whole."""

    shapes: Mapping[str, tuple[int, ...]]
    about: Mapping[str, str]


def write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> dict[str, Json]:
    """Write a file and flush it to disk; its hash and size are of what can be read back.

    Raises:
        OSError: the disk is full, or fails.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # safetensors refuses views that share storage, and wants dense memory.
    dense = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        save_file(dense, path, metadata=dict(about))
    except SafetensorError as error:  # its words for a full disk
        raise OSError(str(error)) from error
    sync(path)
    return {"sha256": sha256_file(path), "bytes": path.stat().st_size}


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of a file.

    Raises:
        CorruptCheckpoint: it is not a whole and honest safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    read_header(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise CorruptCheckpoint(f"{path} is not a readable safetensors file ({error}).") from error


def read_header(path: Path) -> Header:
    """The header alone, every claim in it compared with the size of the file.

    Raises:
        CorruptCheckpoint: a claim is not true.
    """
    try:
        return _judged(path)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path} is not a readable safetensors file ({error}).") from error


def _judged(path: Path) -> Header:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"it has {size} bytes and claims a header of {length}")
        found = json.loads(file.read(length), object_pairs_hook=_once)
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
    return Header({name: tuple(entry["shape"]) for name, entry in found.items()}, about)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in its header")
    return found


def _span(name: str, entry: Any) -> tuple[int, int]:
    """Where a tensor lies, when its dtype and shape fill just that place."""
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    numbers = [*shape, begin, end]
    if not isinstance(shape, list) or len(shape) > 64 or any(type(n) is not int or not 0 <= n < 2**63 for n in numbers):
        raise ValueError(f"{name[:80]!r} has a shape or place that cannot be")
    if math.prod(max(n, 1) for n in shape) >= 2**63:  # no values, but strides that no integer holds
        raise ValueError(f"{name[:80]!r} has a shape that cannot be")
    if entry["dtype"] not in _BYTES:
        raise ValueError(f"{name[:80]!r} is of an unknown dtype, {str(entry['dtype'])[:20]!r}")
    if begin > end or math.prod(shape) * _BYTES[entry["dtype"]] != end - begin:
        raise ValueError(f"{name[:80]!r} says that it has {str(shape)[:80]} values in {end - begin} bytes")
    return begin, end
