"""Tests that each column gets the encoding that stores it in the fewest bytes."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from nemo_vfm.recsys.feature_table.part_writer import smallest_encodings, writer_options


def test_the_smallest_encoding_is_chosen():
    numbers = torch.Generator().manual_seed(0)
    few = torch.randint(0, 3, (4000,), generator=numbers) * 10**15
    columns = {
        "sample": torch.arange(4000) * 3, "feature/few": few, "dense/any": torch.rand(4000, generator=numbers),
    }  # fmt: skip
    columns = {name: pa.array(column.numpy()) for name, column in columns.items()} | {"run/a": pa.array([True] * 4000)}
    assert smallest_encodings(pa.table(columns), 3) == {
        "sample": "DELTA_BINARY_PACKED", "feature/few": "dictionary", "dense/any": "BYTE_STREAM_SPLIT",
        "run/a": "PLAIN",
    }  # fmt: skip


def test_only_columns_that_a_query_filters_by_have_statistics():
    names = ["time", "feature/few", "sample"]
    file = io.BytesIO()
    options = writer_options(dict.fromkeys(names, "PLAIN"), 3)
    pq.write_table(pa.table({name: pa.array([3, 1, 2]) for name in names}), file, **options)
    columns = pq.ParquetFile(file).metadata.row_group(0)
    found = {columns.column(place).path_in_schema: columns.column(place).statistics for place in range(3)}
    assert {name: found[name] and (found[name].min, found[name].max) for name in names} == {
        "time": (1, 3), "feature/few": None, "sample": (1, 3),
    }  # fmt: skip
    assert writer_options({"feature/few": "PLAIN"}, 3)["write_statistics"] is False
