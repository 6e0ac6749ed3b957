# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the bytes of a log: shuffled as plain Parquet, as a feature table, and its unique values alone."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.deduplication.session_data import GROUPS, HISTORIES, ZSTD, LogShape, shuffled, written
from nemo_vfm.recsys.feature_table.column_encoding import smallest_encodings, writer_options
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import deduplicated
from nemo_vfm.sparse.windowed_rows import windowed

PAGES = (64 << 10, 1 << 20)


def folder_bytes(folder: Path) -> int:
    """Of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def plain_table(chunk: LogChunk) -> pa.Table:
    """A column a field, a list a feature, as anybody would store it."""
    columns: dict[str, Any] = {
        "sample": chunk.ids_B.numpy(), "session": chunk.session_B.numpy(), "time": chunk.time_B.numpy(),
    }  # fmt: skip
    columns |= {name: one.numpy() for name, one in {**chunk.dense, **chunk.labels}.items()}
    return pa.table(columns | {name: _lists(rows) for name, rows in chunk.features.items()})


def plain_bytes(chunk: LogChunk, folder: Path, shape: LogShape) -> dict[str, int]:
    """Of each choice: dictionary on or off, two sizes of pages, row groups of as many samples or of half as many."""
    table, path, found = plain_table(chunk), folder / "plain.parquet", dict[str, int]()
    for dictionary, page, rows in itertools.product(
        (True, False), PAGES, (shape.rows_per_group // 2, shape.rows_per_group)
    ):
        pq.write_table(
            table, path, row_group_size=rows, compression="zstd", compression_level=ZSTD, use_dictionary=dictionary,
            data_page_size=page,
        )  # fmt: skip
        name = f"dictionary {'on' if dictionary else 'off'}, pages of {page >> 10} KiB, row groups of {rows:,}"
        found[name] = path.stat().st_size
    return found


def unique_bytes(chunk: LogChunk, shape: LogShape) -> int:
    """Of the values of unique rows alone, without lengths and flags: each column flat, same codec and row groups."""
    total, encodings = 0, dict[str, dict[str, str]]()
    for begin in range(0, len(chunk), shape.rows_per_group):
        part = chunk.rows(begin, begin + shape.rows_per_group)
        for name, column in _unique_columns(part, deduplicated(part.features, GROUPS, clustered=True)).items():
            table = pa.table({name: column})
            encodings.setdefault(name, smallest_encodings(table, ZSTD))
            total += _page_bytes(table, encodings[name])
    return total


def measured(chunk: LogChunk, shape: LogShape, folder: Path) -> dict[str, int]:
    """Bytes by name of the side, of a clustered log."""
    plain = plain_bytes(shuffled(chunk), folder, shape)
    best = min(plain, key=lambda name: plain[name])
    sides = {f"plain, shuffled ({best})": plain[best]}
    sides["plain, clustered"] = min(plain_bytes(chunk, folder, shape).values())
    for name, windows in {"runs stored once": (), "and windows": HISTORIES}.items():
        place = folder / name.replace(" ", "_")
        written(chunk, place, shape, windows=windows)
        sides[name] = folder_bytes(place)
    sides["unique values alone"] = unique_bytes(chunk, shape)
    return sides


def _lists(rows: Jagged) -> Any:
    offsets = np.concatenate([[0], rows.lengths_B.numpy().cumsum()]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.values_N.numpy()))


def _unique_columns(part: LogChunk, groups: dict[str, DedupedGroup]) -> dict[str, np.ndarray]:
    grouped = {name: rows for group in groups.values() for name, rows in group.features.items()}
    columns = {"sample": part.ids_B.numpy(), "session": part.session_B.numpy(), "time": part.time_B.numpy()}
    columns |= {name: one.numpy() for name, one in {**part.dense, **part.labels}.items()}
    columns |= {name: rows.values_N.numpy() for name, rows in part.features.items() if name not in grouped}
    for name, rows in grouped.items():
        columns[name] = (windowed(rows).buffer_K if name in HISTORIES else rows.values_N).numpy()
    return columns


def _page_bytes(table: pa.Table, encodings: dict[str, str]) -> int:
    """Of the column, without the file's own metadata."""
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=len(table), **writer_options(encodings, ZSTD))
    return int(pq.read_metadata(file).row_group(0).column(0).total_compressed_size)
