"""Converts samples and unique rows to columns of Arrow.

Shape letters: B samples, U unique rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.windowed_rows import to_windows

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
    for name in schema.ungrouped_features:
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
            shifted = to_windows(rows)
            first = shifted.starts_B.new_zeros(1)
            dropped_U = torch.diff(shifted.starts_B, prepend=first)
            columns[DROPPED + name] = pa.array(dropped_U.to(torch.int32).numpy())
            rows = Jagged(shifted.buffer_K, torch.diff(shifted.starts_B + shifted.lengths_B, prepend=first))
        columns |= _lists(name, rows)
    return columns, {name: len(columns[FEATURE + name].values) for name in group.features}


def _lists(name: str, rows: Jagged) -> dict[str, Any]:
    import pyarrow as pa

    columns, offsets = {}, pa.array(rows.offsets.to(torch.int32).numpy())
    for kind, numbers_N in ((FEATURE, rows.values_N), (WEIGHT, rows.weights_N)):
        if numbers_N is not None:
            values = pa.array(numbers_N.numpy())
            lists = pa.list_(pa.field("element", values.type, nullable=False))
            columns[kind + name] = pa.ListArray.from_arrays(offsets, values, type=lists)
    return columns
