"""Makes click logs in Criteo's format with Zipf-distributed ids and empty cells, of any size in little memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

_ROWS_AT_ONCE = 1 << 16
_EXPONENT = 1.05
_HEX = np.array([f"{number:04x}" for number in range(1 << 16)], "S4")


def write_criteo(path: Path, num_rows: int, seed: int = 0, num_ids: int = 1_000_000) -> Path:
    """A log of so many rows, about 240 bytes each; an eighth of the cells but the label is empty."""
    names = [f"column {number}" for number in range(40)]
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    schema = pa.schema([(name, pa.int64() if place < 14 else pa.string()) for place, name in enumerate(names)])
    with csv.CSVWriter(path, schema, write_options=options) as file:
        for begin in range(0, num_rows, _ROWS_AT_ONCE):
            numbers = np.random.default_rng([seed, begin])
            file.write(pa.table(_columns(numbers, min(_ROWS_AT_ONCE, num_rows - begin), num_ids), schema))
    return path


def _columns(numbers: np.random.Generator, size: int, num_ids: int) -> list[pa.Array]:
    clicks = pa.array((numbers.random(size) < 0.25).astype(np.int64))
    counts = [pa.array(numbers.geometric(0.01, size) - 3, mask=numbers.random(size) < 0.125) for _ in range(13)]
    ids = [_ranks(numbers, size, num_ids) * 0x9E3779B1 + feature * 0x85EBCA6B for feature in range(26)]
    return [clicks, *counts, *(_hexadecimal(column, numbers.random(size) >= 0.125) for column in ids)]


def _ranks(numbers: np.random.Generator, size: int, num_ids: int) -> NDArray[np.int64]:
    """P(rank) falls as rank^-s, by the inverse of the continuous distribution on [1, num_ids + 1)."""
    power = 1 - _EXPONENT
    return ((1 + numbers.random(size) * ((num_ids + 1) ** power - 1)) ** (1 / power)).astype(np.int64)


def _hexadecimal(ids: NDArray[np.int64], there: NDArray[np.bool_]) -> pa.Array:
    """Eight digits each, without a Python object a cell, which takes ten times as long."""
    digits = np.stack([_HEX[ids[there] >> 16 & 0xFFFF], _HEX[ids[there] & 0xFFFF]], axis=1)
    ends = np.append(0, there.cumsum() * 8).astype(np.int32)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(ends), pa.py_buffer(digits.tobytes()))
