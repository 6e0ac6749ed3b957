"""Chooses the Parquet encoding of each column by writing a sample of it in every encoding."""

import io
from collections.abc import Mapping
from typing import Any

_DICTIONARY, _PLAIN = "dictionary", "PLAIN"


def smallest_encodings(table: Any, zstd_level: int) -> dict[str, str]:
    """Of each leaf column the encoding that takes the fewest bytes, zstd included; the first of those that are equal.

    Args:
        table: a `pyarrow.Table` that stands for all that will come, such as a first row group.
    """
    return {_leaf(table.schema.field(name)): _smallest(table.select([name]), zstd_level) for name in table.column_names}


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


def _leaf(field: Any) -> str:
    """The path of the column's values in a Parquet schema."""
    return f"{field.name}.list.element" if hasattr(field.type, "value_type") else str(field.name)


def _smallest(column: Any, zstd_level: int) -> str:
    name = _leaf(column.schema.field(0))
    sizes = {option: _size(column, {name: option}, zstd_level) for option in _options(column.schema.field(0).type)}
    return min(sizes, key=lambda option: sizes[option])


def _options(kind: Any) -> tuple[str, ...]:
    values = str(getattr(kind, "value_type", kind))
    if values == "bool":
        return (_PLAIN,)
    # Split by bytes, ids take about a tenth less. Arrow reads such integers since 16, parquet-java since 1.14.
    return (_DICTIONARY, _PLAIN, "BYTE_STREAM_SPLIT", *([] if values == "float" else ["DELTA_BINARY_PACKED"]))


def _size(column: Any, encodings: Mapping[str, str], zstd_level: int) -> int:
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(column, file, row_group_size=column.num_rows, **writer_options(encodings, zstd_level))
    return len(file.getvalue())
