"""Tests that a feature table gives the samples back, stores repeated rows once, and names what is wrong."""

import dataclasses
import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.recsys.feature_table import table_reader
from nemo_vfm.recsys.feature_table.stored_rows import read_row_group
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk, LogSource
from nemo_vfm.sparse.row_deduplication import deduplicate
from nemo_vfm.sparse.windowed_rows import to_windows
from tests.support.jagged_rows import jagged, lists
from tests.support.session_chunk import SCHEMA, equal_chunks, equal_rows, session_chunk

CHUNK = session_chunk(60)


def written(folder, chunk=CHUNK, schema=SCHEMA, piece=29, per_group=64, per_part=128, **options):
    writer = FeatureTableWriter(folder, schema, rows_per_part=per_part, rows_per_group=per_group, **options)
    for begin in range(0, len(chunk), piece):
        writer.add(chunk.rows(begin, min(begin + piece, len(chunk))))
    writer.finish()
    return FeatureTable(folder)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return written(tmp_path_factory.mktemp("tables") / "log")


def test_the_samples_come_back_whatever_range_is_read(table):
    assert isinstance(table, LogSource) and table.num_rows == len(CHUNK) > 256
    assert table.manifest.sessions == 60
    assert equal_chunks(LogChunk.cat(list(table.log_chunks())), CHUNK)
    for begin, end in [(0, 1), (63, 65), (5, 200), (64, 128), (130, len(CHUNK))]:
        assert equal_chunks(table.read(begin, end), CHUNK.rows(begin, end))
    assert [*table.read(0, 9, ["history", "item"]).features] == ["history", "item"]


def test_stored_runs_are_the_groups_that_comparing_neighbours_finds(table):
    for begin, end in [(0, len(CHUNK)), (3, 61), (50, 140), (127, 129), (64, 192)]:
        rows = CHUNK.rows(begin, end)
        expected = deduplicate(rows.features, SCHEMA.groups, clustered=True)
        chunk, groups = table.read_deduplicated(begin, end)
        assert [*chunk.features] == ["item"] and [*groups] == ["user", "recent"]
        for name, group in groups.items():
            assert torch.equal(group.inverse_B, expected[name].inverse_B)
            assert all(equal_rows(found, expected[name].features[one]) for one, found in group.features.items())


def test_windows_are_stored_as_their_new_values(table):
    stored = 0
    for number, (begin, end) in enumerate(itertools.pairwise(table.row_groups)):
        unique = deduplicate(CHUNK.rows(begin, end).features, {"recent": ["history"]}, clustered=True)["recent"]
        found, expected = table.windows(number)["history"], to_windows(unique.features["history"])
        assert torch.equal(found.buffer_K, expected.buffer_K) and torch.equal(found.starts_B, expected.starts_B)
        stored += len(found.buffer_K)
    counts = table.manifest.values["history"]
    assert counts == (len(CHUNK.features["history"].values_N), stored) and counts.stored < counts.plain / 3


def test_pyarrow_alone_reads_it_by_the_documented_rule(table):
    samples = pa.concat_tables(pq.read_table(file) for file in sorted(table.folder.glob("part-*.parquet")))
    users = pa.concat_tables(pq.read_table(file) for file in sorted(table.folder.glob("groups/user/*.parquet")))
    row = torch.tensor(samples["run/user"].to_pylist()).cumsum(0) - 1
    assert users["feature/scores"].take(row.tolist()).to_pylist() == lists(CHUNK.features["scores"])
    assert samples["feature/item"].to_pylist() == lists(CHUNK.features["item"])
    assert samples["label/click"].to_pylist() == CHUNK.labels["click"].tolist()


def test_chunks_of_any_size_give_the_same_bytes(tmp_path, table):
    for piece in (1, 64, 1000):
        other = written(tmp_path / str(piece), piece=piece)
        files = sorted(path.relative_to(table.folder) for path in table.folder.rglob("*") if path.is_file())
        assert files == sorted(path.relative_to(other.folder) for path in other.folder.rglob("*") if path.is_file())
        assert all((table.folder / file).read_bytes() == (other.folder / file).read_bytes() for file in files)


def compressed(path):
    footer = pq.read_metadata(path)
    row_groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return sum(one.column(place).total_compressed_size for one in row_groups for place in range(one.num_columns))


def test_the_bytes_of_columns_are_those_of_all_parts(table):
    manifest = table.manifest
    files = [path for part in manifest.parts for path in part.files]
    for group, columns in manifest.column_bytes.items():
        mine = [path for path in files if path.startswith(f"groups/{group}/" if group else "part-")]
        assert len(mine) > 1 and sum(columns.values()) == sum(compressed(table.folder / path) for path in mine)
    assert {"session", "feature/item"} <= set(manifest.column_bytes[""])
    assert "feature/history" in manifest.column_bytes["recent"] and "dropped/history" in manifest.column_bytes["recent"]


def test_an_interrupted_writer_goes_on_to_the_same_bytes(tmp_path, table):
    def writer():
        return FeatureTableWriter(tmp_path, SCHEMA, rows_per_part=128, rows_per_group=64)

    for until in (100, 300):
        interrupted = writer()
        interrupted.add(CHUNK.rows(interrupted.resume(), until))
    with pytest.raises(UserError, match="is not a finished feature table"):
        _ = FeatureTable(tmp_path).manifest
    last = writer()
    assert last.resume() == 256
    last.add(CHUNK.rows(256, len(CHUNK)))
    assert last.finish() == table.manifest and FeatureTable(tmp_path).digest == table.digest
    FeatureTable(tmp_path).verify()


def test_parts_of_another_schema_are_not_gone_on_with(tmp_path):
    interrupted = FeatureTableWriter(tmp_path, SCHEMA, rows_per_part=64, rows_per_group=64)
    interrupted.add(CHUNK.rows(0, 70))
    with pytest.raises(UserError, match="parts with another schema"):
        FeatureTableWriter(tmp_path, TableSchema(["age"])).resume()


def test_only_the_row_groups_used_last_are_kept(table, monkeypatch):
    table, read = FeatureTable(table.folder, cached_row_groups=2), []
    monkeypatch.setattr(table_reader, "read_row_group", lambda *args: read.append(args[3]) or read_row_group(*args))
    for row_group in (0, 1, 0, 1, 2, 1, 0):
        table.load_row_group(row_group)
    assert read == [0, 1, 0, 0]  # numbers in parts of two row groups: 2 is the first of the second part


def test_a_table_is_never_written_over(tmp_path):
    written(tmp_path, CHUNK.rows(0, 9))
    with pytest.raises(UserError, match="already holds a feature table"):
        written(tmp_path, CHUNK.rows(0, 9))
    with pytest.raises(NothingKept, match="no samples to write"):
        FeatureTableWriter(tmp_path / "none", SCHEMA).finish()


def changed(**parts):
    return LogChunk(**{name: parts.get(name, getattr(CHUNK, name)) for name in LogChunk.__dataclass_fields__})


def with_feature(name, rows):
    return changed(features={**CHUNK.features, name: rows})


ITEM = CHUNK.features["item"]
SWAPPED = torch.cat([torch.arange(40, 64), torch.arange(0, 40), torch.arange(64, len(CHUNK))])
BAD = {
    "from row 0 lack age among the dense": changed(dense={}),
    "lack country among the features; they have item": changed(features={"item": ITEM}),
    "click is torch.int64": changed(labels={**CHUNK.labels, "click": CHUNK.labels["click"].long()}),
    "item is torch.int32": with_feature("item", Jagged(ITEM.values_N.int(), ITEM.lengths_B)),
    "item: row 3 has length -1": with_feature(
        "item", Jagged(ITEM.values_N, ITEM.lengths_B.index_fill(0, torch.tensor([3]), -1))
    ),
    "the window history has weights": with_feature("history", CHUNK.features["scores"]),
    "add up to": with_feature("item", Jagged(ITEM.values_N[1:], ITEM.lengths_B)),
    "is before": changed(time_B=CHUNK.time_B.flip(0)),
    "returns after others": changed(session_B=torch.arange(len(CHUNK)) % 5),
    "has weights in only some": with_feature("item", ITEM),
}


@pytest.mark.parametrize("message", BAD)
def test_samples_that_do_not_fit_are_named(tmp_path, message):
    writer = FeatureTableWriter(tmp_path, SCHEMA, rows_per_group=64, rows_per_part=64)
    with pytest.raises(DataError, match=message):
        if message == "has weights in only some":
            weighted = Jagged(ITEM.values_N, ITEM.lengths_B, ITEM.values_N.float())
            writer.add(with_feature("item", weighted).rows(0, 64))
        writer.add(BAD[message])
        writer.finish()
    assert not [*tmp_path.glob("manifest.json")]


def test_order_is_checked_from_row_group_to_row_group(tmp_path):
    chunk = LogChunk(torch.arange(5), torch.tensor([1, 1, 1, 1, 2]), torch.tensor([5, 6, 7, 8, 1]))
    late = dataclasses.replace(chunk, time_B=torch.tensor([5, 6, 3, 8, 1]))
    written(tmp_path / "good", chunk, TableSchema(), per_group=2, per_part=2)
    with pytest.raises(DataError, match="row 2: time 3 of session 1 is before 6"):
        written(tmp_path / "bad", late, TableSchema(), per_group=2, per_part=2)


def test_samples_in_any_order_are_taken_when_asked(tmp_path):
    mixed = changed(session_B=torch.arange(len(CHUNK)) % 5)
    table = written(tmp_path, mixed, TableSchema(labels=["click"], features=["item", "history"]), clustered=False)
    assert table.read(0, len(mixed)).session_B.equal(mixed.session_B) and not table.manifest.clustered


def rewritten(folder, file, change):
    pq.write_table(change(pq.read_table(folder / file)), folder / file, row_group_size=64)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["parts"][0]["files"][file]["bytes"] = (folder / file).stat().st_size
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return FeatureTable(folder)


def replaced(name, values):
    return lambda table: table.set_column(table.schema.get_field_index(name), name, values(table[name]))


def first(value):
    return lambda column: pa.chunked_array([pa.array([value, *column.to_pylist()[1:]], column.type)])


USER, RECENT = "groups/user/part-00000.parquet", "groups/recent/part-00000.parquet"
DAMAGE = {
    r"part-00000.parquet has no column feature/item": ("part-00000.parquet", lambda t: t.drop_columns("feature/item")),
    r"column session is double, expected int64": (
        "part-00000.parquet", replaced("session", lambda c: c.cast(pa.float64()))
    ),
    r"part-00000.parquet: row group 0, column feature/item: row 0 is null": (
        "part-00000.parquet", replaced("feature/item", first(None))
    ),
    r"column run/user: row 0 continues a run": ("part-00000.parquet", replaced("run/user", first(False))),
    r"user/part-00000.parquet: row group 0 has \d+ rows, expected": (USER, lambda t: t.slice(0, 5)),
    r"column feature/scores: row 0 has \d+ values and": (USER, replaced("weight/scores", first([1.0] * 9))),
    r"column dropped/history: row 0 drops 3 values": (RECENT, replaced("dropped/history", first(3))),
    r"column dropped/history: row 0 drops -1 values": (RECENT, replaced("dropped/history", first(-1))),
}  # fmt: skip


@pytest.mark.parametrize("message", DAMAGE)
def test_foreign_files_are_named_with_column_and_row(tmp_path, message):
    file, change = DAMAGE[message]
    written(tmp_path, CHUNK.rows(0, 60))
    table = rewritten(tmp_path, file, change)
    with pytest.raises(DataError, match=message):
        table.read(0, 60)
    with pytest.raises(DataError, match="its sha256 differs"):
        table.verify()


def test_a_file_that_was_replaced_is_read_anew(tmp_path):
    written(tmp_path, CHUNK.rows(0, 60))
    before = FeatureTable(tmp_path).read(0, 60).features["item"]
    changed = replaced("feature/item", first([before.values_N[0].item() + 1]))
    table = rewritten(tmp_path, "part-00000.parquet", changed)
    assert table.read(0, 60).features["item"].values_N[0] == before.values_N[0] + 1


@pytest.mark.parametrize("file", ["part-00000.parquet", USER])
def test_truncated_files_are_named_before_anything_is_read(tmp_path, file):
    written(tmp_path, CHUNK.rows(0, 60))
    data = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(data[:-9])
    with pytest.raises(DataError, match=rf"{file} has {len(data) - 9:,} bytes, but the manifest says {len(data):,}"):
        _ = FeatureTable(tmp_path).manifest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other/1"}, "its format is 'other/1'"),
        ({"rows": 3}, "it says 3"),
        ({"parts": [{"name": "a", "row_groups": [0], "files": {}}]}, "no positive number"),
        ({"parts": [{"name": "a", "row_groups": [1], "files": {"../x": {"bytes": 1, "sha256": ""}}}]}, "outside"),
        ({"values": None}, "AttributeError"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, change, message):
    written(tmp_path, CHUNK.rows(0, 9))
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        _ = FeatureTable(tmp_path).manifest


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"dense": ["a/b"]}, "'a/b' is not a name"),
        ({"labels": ["a", "a"]}, "a occurs twice"),
        ({"features": ["a"], "groups": {"g": []}}, "group g has no features"),
        ({"features": ["a"], "groups": {"g": ["b"]}}, "names b"),
        ({"features": ["a"], "groups": {"g": ["a"], "h": ["a"]}}, "a occurs twice"),
        ({"features": ["a"], "windows": ["a"]}, "is in no group"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        TableSchema(**parts)


def test_an_empty_feature_is_an_empty_list(tmp_path):
    rows = jagged([[], [], []])
    chunk = LogChunk(torch.arange(3), torch.arange(3), torch.arange(3), features={"a": rows, "b": rows})
    table = written(tmp_path, chunk, TableSchema(features=["a", "b"], groups={"b": ["b"]}, windows=["b"]))
    assert equal_chunks(table.read(0, 3), chunk)
    assert pq.read_table(tmp_path / "part-00000.parquet")["feature/a"].to_pylist() == [[], [], []]
