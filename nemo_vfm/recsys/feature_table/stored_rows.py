"""Reads one row group of a feature table: its samples, and the unique rows of its groups.

Shape letters: B samples, U unique rows.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.recsys.feature_table.arrow_columns import (
    DENSE,
    DROPPED,
    FEATURE,
    LABEL,
    NUMBERS,
    RUN,
    SAMPLE_WEIGHT,
    WEIGHT,
)
from nemo_vfm.recsys.feature_table.part_writer import SAMPLES, part_path
from nemo_vfm.recsys.feature_table.table_manifest import Part, TableManifest
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.windowed_rows import WindowedRows

_KINDS = {"sample": "int64", "session": "int64", "time": "int64", DENSE: "float", LABEL: "float", RUN: "bool"}
_KINDS |= {DROPPED: "int32", FEATURE: "list<int64>", WEIGHT: "list<float>", SAMPLE_WEIGHT: "float"}


@dataclass(frozen=True, eq=False)
class StoredRows:
    """A row group."""

    samples: LogChunk  #: all columns but the features of groups
    inverses: Mapping[str, Tensor]  #: of each group, the unique row of each sample: int64 (B,)
    #: of each group, the unique rows of its features as they are stored
    unique: Mapping[str, Mapping[str, Jagged | WindowedRows]]

    @cached_property
    def groups(self) -> dict[str, DedupedGroup]:
        """All groups, with full rows of windows, too."""
        return {
            group: DedupedGroup(
                {name: rows.to_jagged() if isinstance(rows, WindowedRows) else rows for name, rows in its.items()},
                self.inverses[group],
            )
            for group, its in self.unique.items()
        }

    @property
    def windows(self) -> dict[str, WindowedRows]:
        """The unique rows of windows as they are stored."""
        every = [pair for its in self.unique.values() for pair in its.items()]
        return {name: rows for name, rows in every if isinstance(rows, WindowedRows)}


def read_row_group(folder: Path, manifest: TableManifest, part: Part, number: int, names: Sequence[str]) -> StoredRows:
    """A row group of a part.

    Args:
        names: the features to read.
    """
    schema = manifest.schema
    groups = {group: [n for n in schema.groups[group] if n in names] for group in schema.groups}
    groups = {group: its for group, its in groups.items() if its}
    plain = [name for name in schema.ungrouped_features if name in names]
    wanted = [*NUMBERS, *(DENSE + n for n in schema.dense), *(LABEL + n for n in schema.labels)]
    wanted += [
        *(RUN + group for group in groups),
        *_lists(plain, manifest),
        *([SAMPLE_WEIGHT] if schema.weight else []),
    ]
    table = _Columns(folder / part_path(part.name, SAMPLES), number, wanted, part.row_groups[number])
    samples = LogChunk(
        table.numbers("sample"), table.numbers("session"), table.numbers("time"),
        {n: table.numbers(DENSE + n) for n in schema.dense}, {n: table.numbers(LABEL + n) for n in schema.labels},
        {n: table.rows(n) for n in plain}, table.numbers(SAMPLE_WEIGHT) if schema.weight else None,
    )  # fmt: skip
    inverses, found = dict[str, Tensor](), dict[str, dict[str, Jagged | WindowedRows]]()
    for group, its in groups.items():
        inverses[group] = table.inverse(group)
        dropped = [DROPPED + name for name in its if name in schema.windows]
        path = folder / part_path(part.name, group)
        num_unique = int(inverses[group][-1]) + 1
        unique = _Columns(path, number, [*_lists(its, manifest), *dropped], num_unique)
        found[group] = {name: unique.windows(name) if name in schema.windows else unique.rows(name) for name in its}
    return StoredRows(samples, inverses, found)


def read_numbers(folder: Path, part: Part, number: int, column: str) -> Tensor:
    """One of `NUMBERS` of each sample of a row group, int64."""
    path = folder / part_path(part.name, SAMPLES)
    return _Columns(path, number, [column], part.row_groups[number]).numbers(column)


def _lists(names: Sequence[str], manifest: TableManifest) -> list[str]:
    return [FEATURE + name for name in names] + [WEIGHT + name for name in names if name in manifest.weighted]


class _Columns:
    """Columns of a row group of a file, each checked as it is asked for."""

    def __init__(self, path: Path, number: int, names: Sequence[str], num_rows: int) -> None:
        import pyarrow as pa

        self._path, self._number = path, number
        try:
            file, self._kinds = _open_files.get(path, path.stat().st_mtime_ns)
            if missing := [name for name in names if name not in self._kinds]:
                raise DataError(f"{path} has no column {missing[0]}; it has {', '.join(self._kinds)}")
            table = file.read_row_group(number, columns=list(names), use_threads=False)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(
                f"{path} cannot be read ({type(error).__name__}: {error}). Is it complete? Copy or write it again."
            ) from error
        if table.num_rows != num_rows:
            raise DataError(
                f"{path}: row group {number} has {table.num_rows:,} rows, expected {num_rows:,}. Do its files "
                "belong to one table?"
            )
        self._columns = dict(zip(table.column_names, table.columns, strict=True))

    def numbers(self, name: str) -> Tensor:
        """A column without gaps."""
        return _tensor(self._column(name))

    def rows(self, name: str) -> Jagged:
        """A feature."""
        values_N, offsets = _values(self._column(FEATURE + name))
        lengths_B, weights_N = torch.from_numpy(offsets[1:] - offsets[:-1]), None
        if WEIGHT + name in self._columns:
            weights_N, of_weights = _values(self._column(WEIGHT + name))
            if len(wrong := (of_weights != offsets).nonzero()[0]):
                row = int(wrong[0]) - 1
                raise DataError(
                    f"{self._at(FEATURE + name)}: row {row} has {int(lengths_B[row])} values and "
                    f"{of_weights[row + 1] - of_weights[row]} weights"
                )
        return Jagged.from_offsets(values_N, torch.from_numpy(offsets), lengths_B, weights_N)

    def windows(self, name: str) -> WindowedRows:
        """A feature of which new values are stored: row u ends where its own do, and begins after all dropped ones."""
        suffixes, dropped_U = self.rows(name), self.numbers(DROPPED + name)
        ends_U, starts_U = suffixes.lengths_B.cumsum(0), dropped_U.to(torch.int64).cumsum(0)
        kept_U = ends_U - suffixes.lengths_B - starts_U
        if len(bad := ((dropped_U < 0) | (kept_U < 0)).nonzero()):
            row = int(bad[0])
            raise DataError(
                f"{self._at(DROPPED + name)}: row {row} drops {int(dropped_U[row])} values of the previous row, which "
                "has fewer"
            )
        return WindowedRows(suffixes.values_N, starts_U, ends_U - starts_U)

    def inverse(self, group: str) -> Tensor:
        """The unique row of each sample: a run begins where the flag stands."""
        begins_B = self.numbers(RUN + group)
        if not bool(begins_B[0]):
            raise DataError(f"{self._at(RUN + group)}: row 0 continues a run, but a row group begins with one")
        return begins_B.cumsum(0) - 1

    def _column(self, name: str) -> Any:
        chunks = self._columns[name]
        column = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
        expected = next(kind for beginning, kind in _KINDS.items() if name.startswith(beginning))
        if (found := self._kinds[name]) != expected:
            raise DataError(f"{self._at(name)} is {found}, expected {expected}")
        for part, nulls in (("", column), (" in a list", column.values if "list" in expected else column)):
            if nulls.null_count:
                row = nulls.is_null().to_pylist().index(True)
                raise DataError(f"{self._at(name)}: row {row} is null{part}; a missing feature is an empty list")
        return column

    def _at(self, name: str) -> str:
        return f"{self._path}: row group {self._number}, column {name}"


def _tensor(column: Any) -> Tensor:
    """The copy is writable, as torch wants it."""
    return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())


def _values(lists: Any) -> tuple[Tensor, NDArray[np.int64]]:
    """Values and offsets of a column without nulls; its lists may be a part of longer buffers."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    values = _tensor(lists.values.slice(begin, end - begin))
    return values, offsets - begin if begin else offsets


def _open(path: Path, changed_ns: int) -> tuple[Any, Mapping[str, str]]:
    """A file, opened anew once it has changed, and the kinds of its columns."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    kinds = {field.name: field.type for field in file.schema_arrow}
    return file, {
        name: f"list<{of.value_type}>" if hasattr(of, "value_type") else str(of) for name, of in kinds.items()
    }


class _OpenFiles(threading.local):
    """The files that this thread read last: to open one with 50 columns costs as much as to read a small row group.

    Arrow does not promise that threads may share a reader.
    """

    def __init__(self) -> None:
        self.get = lru_cache(maxsize=32)(_open)


_open_files = _OpenFiles()
