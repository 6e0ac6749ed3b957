"""Converts samples and unique rows to Arrow tables, and columns of Parquet back to tensors.

Shape letters: B samples, U unique rows, N values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.windowed_rows import WindowedRows, windowed

#: Where the three numbers of a sample stand, and the fields of a chunk that they fill.
NUMBERS = {"sample": "ids_B", "session": "session_B", "time": "time_B"}
DENSE, LABEL, FEATURE, WEIGHT, RUN, DROPPED = "dense/", "label/", "feature/", "weight/", "run/", "dropped/"
SAMPLE_WEIGHT = "weight"


def sample_columns(chunk: LogChunk, groups: Mapping[str, DedupedGroup], schema: TableSchema) -> dict[str, Any]:
    """The columns of the file of samples: all but the features of groups, of which it has the beginnings of runs."""
    import pyarrow as pa

    columns = {name: pa.array(getattr(chunk, part).numpy()) for name, part in NUMBERS.items()}
    columns |= {} if chunk.weight_B is None else {SAMPLE_WEIGHT: pa.array(chunk.weight_B.numpy())}
    columns |= {LABEL + name: pa.array(chunk.labels[name].numpy()) for name in schema.labels}
    columns |= {DENSE + name: pa.array(chunk.dense[name].numpy()) for name in schema.dense}
    for name, group in groups.items():
        begins_B = torch.diff(group.inverse_B, prepend=group.inverse_B.new_full((1,), -1)) > 0
        columns[RUN + name] = pa.array(begins_B.numpy())
    for name in schema.plain:
        columns |= _lists(name, chunk.features[name])
    return columns


def group_columns(group: DedupedGroup, windows: Sequence[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """The columns of the file of unique rows of a group, and how many values of each feature they hold.

    A row of a window has only the values that are new at its end, and the column beside it says how many of the row
    before are dropped at its beginning.
    """
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name, rows in group.features.items():
        if name in windows:
            shifted = windowed(rows)
            first = shifted.starts_B.new_zeros(1)
            dropped_U = torch.diff(shifted.starts_B, prepend=first)
            columns[DROPPED + name] = pa.array(dropped_U.to(torch.int32).numpy())
            rows = Jagged(shifted.buffer_K, torch.diff(shifted.starts_B + shifted.lengths_B, prepend=first))
        columns |= _lists(name, rows)
    return columns, {name: len(columns[FEATURE + name].values) for name in group.features}


def tensor(column: Any) -> Tensor:
    """A column of numbers. The copy is writable, as torch wants it."""
    return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())


def jagged(lists: Any, weights: Any | None) -> Jagged:
    """A column of lists, and one of their weights."""
    values_N, offsets = _values(lists)
    lengths_B = torch.from_numpy(offsets[1:] - offsets[:-1])
    if weights is None:
        return Jagged.from_offsets(values_N, torch.from_numpy(offsets), lengths_B)
    weights_N, weight_offsets = _values(weights)
    if len(wrong := (weight_offsets != offsets).nonzero()[0]):
        row = int(wrong[0]) - 1
        raise DataError(
            f"row {row} has {int(lengths_B[row])} values and {weight_offsets[row + 1] - weight_offsets[row]} weights"
        )
    return Jagged.from_offsets(values_N, torch.from_numpy(offsets), lengths_B, weights_N)


def windows(suffixes: Jagged, dropped_U: Tensor) -> WindowedRows:
    """Rows of which the new values are stored: row u ends where its new values do, and begins after all dropped."""
    ends_U, starts_U = suffixes.lengths_B.cumsum(0), dropped_U.to(torch.int64).cumsum(0)
    kept_U = ends_U - suffixes.lengths_B - starts_U
    if len(bad := ((dropped_U < 0) | (kept_U < 0)).nonzero()):
        row = int(bad[0])
        raise DataError(f"row {row} drops {int(dropped_U[row])} values of the previous row, which has fewer")
    return WindowedRows(suffixes.values_N, starts_U, ends_U - starts_U)


def _lists(name: str, rows: Jagged) -> dict[str, Any]:
    import pyarrow as pa

    columns, offsets = {}, pa.array(rows.offsets.to(torch.int32).numpy())
    for kind, numbers_N in ((FEATURE, rows.values_N), (WEIGHT, rows.weights_N)):
        if numbers_N is not None:
            values = pa.array(numbers_N.numpy())
            lists = pa.list_(pa.field("element", values.type, nullable=False))
            columns[kind + name] = pa.ListArray.from_arrays(offsets, values, type=lists)
    return columns


def _values(lists: Any) -> tuple[Tensor, np.ndarray]:
    """Values and offsets of a column without nulls; its lists may be a part of longer buffers."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    values = tensor(lists.values.slice(begin, end - begin))
    return values, offsets - begin if begin else offsets
