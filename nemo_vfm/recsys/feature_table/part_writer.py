"""Writes one part of a feature table: a Parquet file of samples, and one of unique rows for each group."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_vfm.core.storage.files import sha256_file, sync
from nemo_vfm.recsys.feature_table.column_encoding import writer_options
from nemo_vfm.recsys.feature_table.table_manifest import Part, PartFile

#: The name under which the file of samples stands among those of groups.
SAMPLES = ""


def part_path(name: str, group: str) -> str:
    """Where a part's file of a group lies below the table's folder; of `SAMPLES` that of its samples."""
    return f"groups/{group}/{name}.parquet" if group else f"{name}.parquet"


class PartWriter:
    """Writes row groups under temporary names; `close` gives them their own.

    Args:
        folder: of the table.
        name: of the part.
        encodings: of each file, by the path of a column.
        zstd_level: of all columns.
    """

    def __init__(self, folder: Path, name: str, encodings: Mapping[str, Mapping[str, str]], zstd_level: int) -> None:
        self._folder, self._name = folder, name
        self._encodings, self._zstd_level = encodings, zstd_level
        self._writers: dict[str, Any] = {}
        self._row_groups: list[int] = []
        self.column_bytes: dict[str, dict[str, int]] = {}  # of each file, known when it is closed

    def write(self, tables: Mapping[str, Any]) -> None:
        """One row group of each file."""
        for group, table in tables.items():
            if group not in self._writers:
                self._writers[group] = self._opened(group, table.schema)
            self._writers[group].write_table(table, row_group_size=table.num_rows)
        self._row_groups.append(tables[SAMPLES].num_rows)

    def close(self) -> Part:
        """Give the files their names, that of the samples last."""
        files = {}
        for group in reversed(self._writers):
            self._writers[group].close()
            temporary, path = self._temporary(group), self._folder / part_path(self._name, group)
            self.column_bytes[group] = _column_bytes(temporary)
            sync(temporary)
            file = PartFile(temporary.stat().st_size, sha256_file(temporary))
            temporary.replace(path)
            sync(path.parent)
            files[part_path(self._name, group)] = file
        return Part(self._name, tuple(self._row_groups), dict(sorted(files.items())))

    def _opened(self, group: str, schema: Any) -> Any:
        import pyarrow.parquet as pq

        path = self._temporary(group)
        path.parent.mkdir(parents=True, exist_ok=True)
        return pq.ParquetWriter(path, schema, **writer_options(self._encodings[group], self._zstd_level))

    def _temporary(self, group: str) -> Path:
        path = self._folder / part_path(self._name, group)
        return path.with_name(f".{path.name}.tmp")


def _column_bytes(path: Path) -> dict[str, int]:
    """Compressed bytes of each column; one of lists has a single leaf, whose path begins with the column's name."""
    import pyarrow.parquet as pq

    footer, found = pq.read_metadata(path), Counter[str]()
    names = footer.schema.to_arrow_schema().names
    for row_group in map(footer.row_group, range(footer.num_row_groups)):
        for place, name in enumerate(names):
            found[name] += row_group.column(place).total_compressed_size
    return dict(found)
