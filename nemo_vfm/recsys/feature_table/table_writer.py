"""Writes the samples of a log as a feature table, in parts of Parquet that are whole or absent."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.recsys.feature_table.arrow_columns import group_columns, sample_columns
from nemo_vfm.recsys.feature_table.part_writer import SAMPLES, PartWriter, part_path, smallest_encodings
from nemo_vfm.recsys.feature_table.table_manifest import NAME, TableManifest, ValueCounts, read_manifest
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import deduplicate

UNFINISHED = "unfinished.json"  #: the manifest of the parts so far


class FeatureTableWriter:
    """Takes samples in chunks of any size. The same samples give the same bytes, however they are cut into chunks.

    Give it the samples of a session one after another, ordered by time: rows are stored once a run of equal ones, and
    only inside of a row group.

    Args:
        folder: where to write; nothing is written before the first samples.
        schema: which columns to take of the chunks.
        rows_per_part: samples of a file, a multiple of `rows_per_group`.
        rows_per_group: samples of a row group, which is what is held in memory and read at once.
        zstd_level: of all columns.
        clustered: False takes samples in any order, as for a log that is to be compared with a clustered one.
        ids, table_rows: see `TableManifest`.
    """

    def __init__(
        self,
        folder: Path,
        schema: TableSchema,
        *,
        rows_per_part: int = 1 << 20,
        rows_per_group: int = 1 << 16,
        zstd_level: int = 3,
        clustered: bool = True,
        ids: str = "",
        table_rows: Mapping[str, int] | None = None,
    ) -> None:
        if rows_per_group < 1 or rows_per_part < 1 or rows_per_part % rows_per_group:
            raise ValueError(
                f"rows_per_part {rows_per_part:,} is not a multiple of rows_per_group {rows_per_group:,}, or below 1"
            )
        self._folder, self._rows_per_part, self._rows_per_group = folder, rows_per_part, rows_per_group
        self._zstd_level = zstd_level
        self._done = TableManifest(schema, clustered, (), 0, {}, {}, {}, {}, (), ids, dict(table_rows or {}))
        self._pending: list[LogChunk] = []
        self._waiting = 0  # samples of `_pending`
        self._rows = 0  # samples of all row groups
        self._last: tuple[int, int] | None = None  # session and time of the last of them
        self._part: PartWriter | None = None

    def resume(self) -> int:
        """How many samples an interrupted writer has left in whole parts: go on with the sample after them."""
        import pyarrow.parquet as pq

        if not (self._folder / UNFINISHED).is_file():
            return 0
        found = read_manifest(self._folder, UNFINISHED)
        if (found.schema, found.clustered) != (self._done.schema, self._done.clustered):
            raise UserError(f"{self._folder} holds parts with another schema; write into an empty folder")
        self._done, self._rows = found, found.num_rows
        # Session and time of the last sample of a part.
        with pq.ParquetFile(self._folder / part_path(found.parts[-1].name, SAMPLES)) as file:
            rows = file.read_row_group(file.num_row_groups - 1, columns=["session", "time"])
        self._last = rows["session"][-1].as_py(), rows["time"][-1].as_py()
        return self._rows

    def add(self, chunk: LogChunk) -> None:
        """Take the next samples, which must stay as they are until they are written."""
        at, schema = self._rows + self._waiting, self._done.schema
        for kind in ("dense", "labels", "features"):
            found = getattr(chunk, kind)
            if missing := [name for name in getattr(schema, kind) if name not in found]:
                raise DataError(
                    f"the samples from row {at:,} lack {missing[0]} among the {kind}; they have {', '.join(found)}"
                )
        if schema.weight and chunk.weight_B is None:
            raise DataError(f"the samples from row {at:,} lack weights, but the table's samples have them")
        kept = LogChunk(
            chunk.ids_B, chunk.session_B, chunk.time_B, {name: chunk.dense[name] for name in schema.dense},
            {name: chunk.labels[name] for name in schema.labels},
            {name: chunk.features[name] for name in schema.features}, chunk.weight_B if schema.weight else None,
        )  # fmt: skip
        try:
            integers = {"sample": kept.ids_B, "session": kept.session_B, "time": kept.time_B}
            integers |= {name: rows.values_N for name, rows in kept.features.items()}
            integers |= {f"lengths of {name}": rows.lengths_B for name, rows in kept.features.items()}
            floats = {**kept.dense, **kept.labels} | ({} if kept.weight_B is None else {"weight": kept.weight_B})
            for name, rows in kept.features.items():
                floats |= {} if rows.weights_N is None else {f"weights of {name}": rows.weights_N}
            for dtype, columns in ((torch.int64, integers), (torch.float32, floats)):
                for name, column in columns.items():
                    if column.dtype != dtype or column.dim() != 1 or column.device.type != "cpu":
                        raise DataError(
                            f"{name} is {column.dtype} of shape {tuple(column.shape)} on {column.device}, expected one "
                            f"{dtype} a row on the CPU"
                        )
            kept.require_valid()
            if weighted := [name for name in schema.windows if kept.features[name].weights_N is not None]:
                raise DataError(
                    f"the window {weighted[0]} has weights, but a value would have a different one in each row"
                )
        except DataError as error:
            raise DataError(f"the samples from row {at:,}: {error}") from error
        self._pending.append(kept)
        self._waiting += len(chunk)
        if self._waiting < self._rows_per_group:
            return
        chunk = self._take_pending()
        whole = len(chunk) // self._rows_per_group * self._rows_per_group
        for begin in range(0, whole, self._rows_per_group):
            self._write(chunk.rows(begin, begin + self._rows_per_group))
        self._pending, self._waiting = [chunk.rows(whole, len(chunk))], len(chunk) - whole

    def finish(self) -> TableManifest:
        """Write what is left, and the manifest."""
        if self._waiting:
            self._write(self._take_pending())
        if self._part is not None:
            self._close(self._part)
        if not self._done.parts:
            raise NothingKept(f"there are no samples to write into {self._folder}")
        write_json(self._folder / NAME, self._done.json())
        (self._folder / UNFINISHED).unlink(missing_ok=True)
        return self._done

    def _take_pending(self) -> LogChunk:
        """All samples that wait."""
        pending, self._pending, self._waiting = self._pending, [], 0
        if len(set(map(_weighted_features, pending))) > 1:
            raise DataError(f"the samples from row {self._rows:,}: a feature has weights in only some of them")
        return LogChunk.cat(pending)

    def _write(self, chunk: LogChunk) -> None:
        """One row group of each file."""
        import pyarrow as pa

        if self._done.clustered:
            require_order(chunk, self._last, at=self._rows)
        groups = deduplicate(chunk.features, self._done.schema.groups, clustered=True)
        tables = {SAMPLES: pa.table(sample_columns(chunk, groups, self._done.schema))}
        stored = {name: len(chunk.features[name].values_N) for name in self._done.schema.ungrouped_features}
        for name, group in groups.items():
            columns, counts = group_columns(group, self._done.schema.windows)
            tables[name], stored = pa.table(columns), stored | counts
        if not self._done.encodings:  # the first row group decides how all columns are stored
            if (self._folder / NAME).exists():
                raise UserError(f"{self._folder} already holds a feature table; write into an empty folder")
            encodings = {name: smallest_encodings(table, self._zstd_level) for name, table in tables.items()}
            self._done = replace(self._done, encodings=encodings, weighted=_weighted_features(chunk))
        if _weighted_features(chunk) != self._done.weighted:
            raise DataError(f"row {self._rows:,}: a feature has weights in only some samples")
        if self._part is None:
            name = f"part-{len(self._done.parts):05d}"
            self._part = PartWriter(self._folder, name, self._done.encodings, self._zstd_level)
        self._part.write(tables)
        done, sessions = self._done, chunk.session_B
        begun = int((sessions[1:] != sessions[:-1]).sum()) + (self._last is None or self._last[0] != int(sessions[0]))
        values = {
            name: ValueCounts(*(a + b for a, b in zip(done.values.get(name, (0, 0)), found, strict=True)))
            for name, found in {n: (len(rows.values_N), stored[n]) for n, rows in chunk.features.items()}.items()
        }
        unique = {name: done.unique_rows.get(name, 0) + group.num_unique for name, group in groups.items()}
        self._done = replace(done, sessions=done.sessions + begun, values=values, unique_rows=unique)
        self._rows += len(chunk)
        self._last = int(sessions[-1]), int(chunk.time_B[-1])
        if self._rows % self._rows_per_part == 0:
            self._close(self._part)

    def _close(self, part: PartWriter) -> None:
        """An interrupted writer goes on after it."""
        parts, before = (*self._done.parts, part.close()), self._done.column_bytes
        column_bytes = {
            file: {name: before.get(file, {}).get(name, 0) + size for name, size in columns.items()}
            for file, columns in sorted(part.column_bytes.items())
        }
        self._part, self._done = None, replace(self._done, parts=parts, column_bytes=column_bytes)
        write_json(self._folder / UNFINISHED, self._done.json())


def _weighted_features(chunk: LogChunk) -> tuple[str, ...]:
    return tuple(name for name, rows in chunk.features.items() if rows.weights_N is not None)


def require_order(chunk: LogChunk, before: tuple[int, int] | None, *, at: int) -> None:
    """Check that no session comes back, and no time inside of one goes back.

    Only the samples of one chunk are compared with each other. A session that comes back later is not seen; it stores
    its rows again.

    Args:
        before: session and time of the sample before, if any.
        at: number of the first sample in the table, for the message.
    """
    sessions_B, times_B = chunk.session_B, chunk.time_B
    if before is not None:
        sessions_B = torch.cat([sessions_B.new_tensor([before[0]]), sessions_B])
        times_B = torch.cat([times_B.new_tensor([before[1]]), times_B])
        at -= 1
    same = sessions_B[1:] == sessions_B[:-1]
    if len(bad := (same & (times_B[1:] < times_B[:-1])).nonzero()):
        row = int(bad[0]) + 1
        raise DataError(
            f"row {at + row:,}: time {int(times_B[row])} of session {int(sessions_B[row])} is before "
            f"{int(times_B[row - 1])}, that of the previous row. Cluster the samples by session and order them by time."
        )
    begins = torch.nn.functional.pad(~same, (1, 0), value=True)
    runs = sessions_B[begins]
    first = dict[int, int]()
    if len(torch.unique(runs)) < len(runs):
        for session, row in zip(runs.tolist(), begins.nonzero().squeeze(1).tolist(), strict=True):
            if first.setdefault(session, row) != row:
                raise DataError(
                    f"row {at + row:,}: session {session} returns after others. Cluster the samples by session and "
                    "order them by time, or write them with clustered=False."
                )
