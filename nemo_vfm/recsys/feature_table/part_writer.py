"""Writes one part of a feature table: a Parquet file of samples, and one of unique rows for each group."""

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_vfm.core.storage.files import sha256_file, sync
from nemo_vfm.recsys.feature_table.table_manifest import Part, PartFile

#: The name under which the file of samples stands among those of groups.
SAMPLES = ""
_DICTIONARY, _PLAIN = "dictionary", "PLAIN"


def part_path(name: str, group: str) -> str:
    """Where a part's file of a group lies below the table's folder; of `SAMPLES` that of its samples."""
    return f"groups/{group}/{name}.parquet" if group else f"{name}.parquet"


@dataclass(slots=True)
class PartWriter:
    """Writes row groups under temporary names; `close` gives them their own."""

    _folder: Path
    _name: str
    _encodings: Mapping[str, Mapping[str, str]]
    _zstd_level: int
    column_bytes: dict[str, dict[str, int]] = field(default_factory=dict)  #: of each file, known when it is closed
    _writers: dict[str, Any] = field(default_factory=dict)
    _row_groups: list[int] = field(default_factory=list)

    def write(self, tables: Mapping[str, Any]) -> None:
        """One row group of each file."""
        import pyarrow.parquet as pq

        for group, table in tables.items():
            if group not in self._writers:
                path = self._temporary(group)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._writers[group] = pq.ParquetWriter(
                    path, table.schema, **writer_options(self._encodings[group], self._zstd_level)
                )
            self._writers[group].write_table(table, row_group_size=table.num_rows)
        self._row_groups.append(tables[SAMPLES].num_rows)

    def close(self) -> Part:
        """Give the files their names, that of the samples last."""
        import pyarrow.parquet as pq

        files = {}
        for group in reversed(self._writers):
            self._writers[group].close()
            temporary, path = self._temporary(group), self._folder / part_path(self._name, group)
            # Compressed bytes of each column; one of lists has a single leaf, whose path begins with the column's name.
            footer, found = pq.read_metadata(temporary), Counter[str]()
            names = footer.schema.to_arrow_schema().names
            for row_group in map(footer.row_group, range(footer.num_row_groups)):
                for place, name in enumerate(names):
                    found[name] += row_group.column(place).total_compressed_size
            self.column_bytes[group] = dict(found)
            sync(temporary)
            file = PartFile(temporary.stat().st_size, sha256_file(temporary))
            temporary.replace(path)
            sync(path.parent)
            files[part_path(self._name, group)] = file
        return Part(self._name, tuple(self._row_groups), dict(sorted(files.items())))

    def _temporary(self, group: str) -> Path:
        path = self._folder / part_path(self._name, group)
        return path.with_name(f".{path.name}.tmp")


def smallest_encodings(table: Any, zstd_level: int) -> dict[str, str]:
    """Of each leaf column the encoding that takes the fewest bytes, zstd included; the first of those that are equal.

    Args:
        table: a `pyarrow.Table` that stands for all that will come, such as a first row group.
    """
    import pyarrow.parquet as pq

    found = {}
    for stored in table.schema:
        column, values = table.select([stored.name]), str(getattr(stored.type, "value_type", stored.type))
        # The path of the column's values in a Parquet schema.
        leaf = f"{stored.name}.list.element" if hasattr(stored.type, "value_type") else str(stored.name)
        # Split by bytes, ids take about a tenth less. Arrow reads such integers since 16, parquet-java since 1.14.
        options = [_DICTIONARY, _PLAIN, "BYTE_STREAM_SPLIT", *([] if values == "float" else ["DELTA_BINARY_PACKED"])]
        sizes = {}
        for option in [_PLAIN] if values == "bool" else options:
            file = io.BytesIO()
            pq.write_table(column, file, row_group_size=column.num_rows, **writer_options({leaf: option}, zstd_level))
            sizes[option] = len(file.getvalue())
        found[leaf] = min(sizes, key=lambda option: sizes[option])
    return found


def writer_options(encodings: Mapping[str, str], zstd_level: int) -> dict[str, Any]:
    """What `pyarrow.parquet.ParquetWriter` is given.

    Pages are of version 1, which compresses the levels of lists, too. Only columns that a query may filter by have
    statistics. The Arrow schema is left out, since it says nothing that Parquet's own does not.
    """
    indexed = [name for name in ("sample", "session", "time") if name in encodings]
    return {
        "compression": "zstd", "compression_level": zstd_level, "data_page_version": "1.0", "store_schema": False,
        "write_statistics": indexed or False,
        "use_dictionary": [name for name, encoding in encodings.items() if encoding == _DICTIONARY] or False,
        "column_encoding": {name: encoding for name, encoding in encodings.items() if encoding != _DICTIONARY},
    }  # fmt: skip
