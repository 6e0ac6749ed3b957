"""Measures the bytes of a log: shuffled as plain Parquet, as a feature table, and its unique values alone."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.deduplication.session_data import GROUPS, HISTORIES, ZSTD, LogShape, written
from nemo_vfm.recsys.feature_table.part_writer import smallest_encodings, writer_options
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import deduplicate
from nemo_vfm.sparse.windowed_rows import to_windows

ENCODED = "smallest encodings"
PAGES = (1 << 20, 4 << 20)  # Arrow's, and one that holds most columns of a row group: smaller ones take more bytes


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


def plain_choices(table: pa.Table, rows: int) -> dict[str, dict[str, Any]]:
    """What pyarrow is asked for: encodings, two sizes of pages, row groups of `rows` samples or of half as many.

    Encodings are pyarrow's own with dictionaries on or off, and `ENCODED`: the smallest of each column, as in a table.
    """
    zstd = {"compression": "zstd", "compression_level": ZSTD}
    encodings = {f"dictionary {name}": {**zstd, "use_dictionary": name == "on"} for name in ("on", "off")}
    encodings[ENCODED] = writer_options(smallest_encodings(table.slice(0, rows), ZSTD), ZSTD)
    return {
        f"{name}, pages of {page >> 20} MiB, row groups of {size:,}":
            {**options, "data_page_size": page, "row_group_size": size}
        for (name, options), page, size in itertools.product(encodings.items(), PAGES, (rows // 2, rows))
    }  # fmt: skip


def plain_bytes(table: pa.Table, path: Path, options: dict[str, Any]) -> int:
    """Of the file that pyarrow writes."""
    pq.write_table(table, path, **options)
    return path.stat().st_size


def unique_bytes(chunk: LogChunk, shape: LogShape) -> int:
    """Of the values of unique rows alone, without lengths and flags: each column flat, same codec and row groups."""
    total, encodings = 0, dict[str, dict[str, str]]()
    for begin in range(0, len(chunk), shape.rows_per_group):
        part = chunk.rows(begin, begin + shape.rows_per_group)
        for name, column in _unique_columns(part, deduplicate(part.features, GROUPS, clustered=True)).items():
            table = pa.table({name: column})
            encodings.setdefault(name, smallest_encodings(table, ZSTD))
            total += _page_bytes(table, encodings[name])
    return total


def measured(shuffled: LogChunk, clustered: LogChunk, shape: LogShape, folder: Path) -> dict[str, int]:
    """Bytes by name of the side; the first is the smallest plain file, the second that with pyarrow's encodings."""
    table, path = plain_table(shuffled), folder / "plain.parquet"
    choices = plain_choices(table, shape.rows_per_group)
    plain = {name: plain_bytes(table, path, options) for name, options in choices.items()}
    best = min(plain, key=lambda name: plain[name])
    of_pyarrow = min((name for name in plain if ENCODED not in name), key=lambda name: plain[name])
    sides = {f"plain, shuffled ({best})": plain[best], f"pyarrow's encodings ({of_pyarrow})": plain[of_pyarrow]}
    table = plain_table(clustered)
    sides["plain, clustered"] = plain_bytes(table, path, plain_choices(table, shape.rows_per_group)[best])
    for name, windows in {"runs stored once": (), "and windows": HISTORIES}.items():
        place = folder / name.replace(" ", "_")
        written(clustered, place, shape, windows=windows)
        sides[name] = folder_bytes(place)
    sides["unique values alone"] = unique_bytes(clustered, shape)
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
        columns[name] = (to_windows(rows).buffer_K if name in HISTORIES else rows.values_N).numpy()
    return columns


def _page_bytes(table: pa.Table, encodings: dict[str, str]) -> int:
    """Of the column, without the file's own metadata."""
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=len(table), **writer_options(encodings, ZSTD))
    return int(pq.read_metadata(file).row_group(0).column(0).total_compressed_size)
