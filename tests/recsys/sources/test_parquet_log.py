"""Tests that Parquet columns of many types become samples, and that what is none is named."""

import datetime
import hashlib
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.recsys.sources import parquet_log
from nemo_vfm.recsys.sources.log_reading import ImportSource, LogPosition
from nemo_vfm.recsys.sources.parquet_log import ParquetLog
from nemo_vfm.sparse.log_chunk import LogChunk, LogSource
from tests.support.jagged_rows import lists

NAMES = {"session": "s", "time": "t", "labels": ["y"], "features": ["f"], "dense": ["d"]}


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def table(rows: int = 3, **columns: pa.Array) -> pa.Table:
    """Good rows, but for some columns."""
    plain = {"s": pa.array(range(rows)), "t": pa.array(range(rows)), "y": pa.array([1.0] * rows),
             "f": pa.array(range(rows)), "d": pa.array([0.5] * rows), "unused": pa.array(["x"] * rows)}  # fmt: skip
    return pa.table(plain | columns)


def source(tmp_path, *tables: pa.Table, row_group_size: int | None = None, **settings) -> ParquetLog:
    paths = [tmp_path / f"{number}.parquet" for number in range(len(tables))]
    for path, one in zip(paths, tables, strict=True):
        pq.write_table(one, path, row_group_size=row_group_size)
    return ParquetLog(paths=paths, **{**NAMES, **settings})


MAP = pa.map_(pa.int64(), pa.float64())
X = hash_of("x")
FEATURES = [
    (pa.array([1, None, 3], pa.int32()), [[1], [], [3]]),
    (pa.array([2**64 - 1, 0, None], pa.uint64()), [[-1], [0], []]),
    (pa.array(["a", None, "a"]), [[hash_of("a")], [], [hash_of("a")]]),
    (pa.array(["a", "é", "b"]).dictionary_encode(), [[hash_of("a")], [hash_of("é")], [hash_of("b")]]),
    (pa.array([[1, 2], None, []], pa.list_(pa.int16())), [[1, 2], [], []]),
    (pa.array([["x"], [], ["y", "x"]], pa.large_list(pa.large_string())), [[X], [], [hash_of("y"), X]]),
    (pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)), [[1, 2], [3, 4], [5, 6]]),
]  # fmt: skip


@pytest.mark.parametrize(("column", "expected"), FEATURES, ids=lambda one: str(getattr(one, "type", "")))
def test_ids_of_many_types_become_rows(column, expected, tmp_path):
    found = source(tmp_path, table(f=column))
    assert isinstance(found, ImportSource) and isinstance(found, LogSource)
    (chunk,) = found.log_chunks()
    assert lists(chunk.features["f"]) == expected


def test_sessions_times_labels_and_numbers_of_many_types(tmp_path):
    day = datetime.date(1970, 1, 11)
    tables = [
        table(
            s=pa.array(["u", "v", "u"]),
            t=pa.array([day] * 3),
            y=pa.array([True, False, True]),
            d=pa.array([1, None, 3]),
        ),
        table(t=pa.array([5, 6, 7], pa.timestamp("us")), d=pa.array([math.nan, 1e38, -1.0], pa.float32())),
    ]
    chunk = LogChunk.cat([*source(tmp_path, *tables).log_chunks()])
    assert chunk.ids_B.tolist() == [*range(6)]
    assert chunk.session_B.tolist() == [hash_of("u"), hash_of("v"), hash_of("u"), 0, 1, 2]
    assert chunk.time_B.tolist() == [10, 10, 10, 5, 6, 7] and chunk.labels["y"].tolist() == [1, 0, 1, 1, 1, 1]
    assert chunk.dense["d"].tolist() == pytest.approx([1, math.nan, 3, math.nan, 1e38, -1], nan_ok=True)
    logs = LogChunk.cat([*source(tmp_path, *tables, log1p=True).log_chunks()]).dense["d"].tolist()
    assert logs[::2] == pytest.approx([math.log(2), math.log(4), 38 * math.log(10)]) and logs[5] == 0
    alone = LogChunk.cat([*source(tmp_path, *tables, session=None, time=None).log_chunks()])
    assert alone.session_B.tolist() == alone.time_B.tolist() == alone.ids_B.tolist()


def test_a_map_becomes_ids_with_weights_in_any_part_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_log, "_BATCH_ROWS", 2)
    rows = [{3: 0.5, 1: 2.0}, None, {}, {7: 1.0}]
    of_texts = pa.array([{"x": number} for number in range(4)], pa.map_(pa.string(), pa.int32()))
    whole = table(4, f=pa.array(rows, MAP), g=of_texts)
    found = LogChunk.cat([*source(tmp_path, whole, features=["f", "g"]).log_chunks()]).features
    assert lists(found["f"]) == [[*(row or {})] for row in rows] and lists(found["g"]) == [[X]] * 4
    assert found["f"].weights_N.tolist() == [0.5, 2.0, 1.0] and found["g"].weights_N.tolist() == [0, 1, 2, 3]


BAD = {
    "s is null": {"s": pa.array([1, None, 3])}, "t is null": {"t": pa.array([1, None, 3])},
    "y is null or NaN": {"y": pa.array([0.0, math.nan, 1.0])},
    "f has a null in its list": {"f": pa.array([[1], [2, None, None], []])},
    "f has a weight that is null or infinite": {"f": pa.array([{1: 1.0}, {2: None}, None], MAP)},
    "w is null or NaN": {"w": pa.array([1.0, None, 2.0])},
}  # fmt: skip


@pytest.mark.parametrize("reason", BAD)
def test_a_row_that_is_no_sample_is_named_and_the_others_stay(reason, tmp_path):
    weight = "w" if "w" in BAD[reason] else None
    found = source(tmp_path, table(1, w=pa.array([1.0])), table(**BAD[reason]), weight=weight)
    reads = [*found.read(LogPosition())]
    assert [(row.file, row.line, row.reason) for row in reads[1].bad] == [(str(tmp_path / "1.parquet"), 2, reason)]
    assert reads[1].chunk.ids_B.tolist() == [1, 3] and reads[1].lines_B.tolist() == [1, 3]
    assert not reads[0].bad and reads[1].end.row == 4


OTHER_TYPES = [
    pa.array([0.5] * 3), pa.array([{"a": 1}] * 3), pa.array([[[1]]] * 3), pa.array([[{1: 1.0}]] * 3, pa.list_(MAP)),
    pa.array([{1: "x"}] * 3, pa.map_(pa.int64(), pa.string())), pa.array([{1: {2: 1.0}}] * 3, pa.map_(pa.int64(), MAP)),
]  # fmt: skip


@pytest.mark.parametrize("column", OTHER_TYPES, ids=lambda one: str(one.type))
@pytest.mark.parametrize("name", ["s", "t", "f", "y"])
def test_a_column_of_another_type_is_refused_with_its_file_and_type(name, column, tmp_path):
    if name == "y" and column.type == pa.float64():
        column = pa.array(["1"] * 3)
    with pytest.raises(UserError, match=rf"column {name} of .*0.parquet is of the type .*, but"):
        [*source(tmp_path, table(**{name: column})).log_chunks()]


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_texts_are_no_times_since_their_hashes_have_no_order(kind, tmp_path):
    with pytest.raises(UserError, match=r"column t of .* but integers, dates or timestamps were expected as times"):
        [*source(tmp_path, table(t=pa.array(["2026-01-01"] * 3).cast(kind))).log_chunks()]


def test_reading_goes_on_from_the_end_of_any_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_log, "_BATCH_ROWS", 4)
    found = source(tmp_path, table(23), table(9), table(5), row_group_size=10)
    reads = [*found.read(LogPosition())]
    assert LogChunk.cat([read.chunk for read in reads]).ids_B.tolist() == [*range(37)]
    assert len(reads) == 3 + 3 + 1 + 3 + 2 and reads[-1].share == 1
    for number, read in enumerate(reads):
        rest = [(one.end, one.share, one.chunk.ids_B.tolist()) for one in found.read(read.end)]
        assert rest == [(one.end, one.share, one.chunk.ids_B.tolist()) for one in reads[number + 1 :]]


def test_a_missing_column_a_cut_file_and_no_file_are_named(tmp_path):
    with pytest.raises(UserError, match=r"0.parquet has no column clicks; it has s, t, y, f, d, unused"):
        [*source(tmp_path, table(), labels=["clicks"]).log_chunks()]
    whole = source(tmp_path, table(1000))
    data = (tmp_path / "0.parquet").read_bytes()
    for length in (len(data) - 1, len(data) // 2, 3, 0):
        (tmp_path / "0.parquet").write_bytes(data[:length])
        with pytest.raises(DataError, match=r"0.parquet cannot be read beyond row 0"):
            [*whole.log_chunks()]
    (tmp_path / "0.parquet").write_bytes(data[:100] + bytes(300) + data[400:])
    with pytest.raises(DataError, match=r"0.parquet cannot be read beyond row 0"):
        [*whole.log_chunks()]
    with pytest.raises(UserError, match="there is no file"):
        [*ParquetLog(paths=[tmp_path / "none"], **NAMES).log_chunks()]
    with pytest.raises(ValueError, match="paths is empty"):
        ParquetLog(paths=[], **NAMES)
