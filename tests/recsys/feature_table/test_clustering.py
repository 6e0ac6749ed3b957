"""Tests that the sort by way of the disk loses nothing, and does not depend on memory, chunks or kills."""

import contextlib
import itertools

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.recsys.feature_table import clustering
from nemo_vfm.recsys.feature_table.clustering import SessionSort, num_bytes, without_first, write_clustered
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from tests.support.log_samples import random_log, samples_of

SCHEMA = TableSchema(["price"], ["click"], ["item", "user"], {"user": ["user"]})


def cut(chunk: LogChunk, size: int) -> list[LogChunk]:
    return [chunk.rows(begin, min(begin + size, len(chunk))) for begin in range(0, len(chunk), size)]


@pytest.mark.parametrize(("memory", "size", "slice_rows"), [(1 << 30, 1000, 1 << 15), (20_000, 70, 1), (40_000, 7, 30)])
def test_sessions_come_whole_and_in_order_of_time_whatever_the_memory(memory, size, slice_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(clustering, "_SLICE_ROWS", slice_rows)
    log = random_log(600)
    expected = SessionSort(tmp_path / "whole", 1 << 30)
    expected.fill([(log, 0)])
    sort = SessionSort(tmp_path / "spill", memory)
    shuffled = log.select(torch.randperm(600, generator=torch.Generator().manual_seed(0)))
    sort.fill((chunk, number) for number, chunk in enumerate(cut(shuffled, size)))
    chunks = [*sort.sorted_chunks()]
    found = [sample for chunk in chunks for sample in samples_of(chunk)]
    assert found == [sample for chunk in expected.sorted_chunks() for sample in samples_of(chunk)]
    assert sorted(found) == samples_of(log)
    runs = [[*run] for _, run in itertools.groupby(found, key=lambda sample: sample[1])]
    assert len(runs) == len({sample[1] for sample in found})
    assert all(run == sorted(run, key=lambda sample: (sample[2], sample[0])) for run in runs)
    owners = [set(chunk.session_B.tolist()) for chunk in chunks]
    assert sum(map(len, owners)) == len(set.union(*owners)), "a session is in two chunks"
    assert memory == 1 << 30 or len([*(tmp_path / "spill").iterdir()]) > 3


def test_weights_and_empty_chunks_come_back(tmp_path):
    log = random_log(50)
    item = log.features["item"]
    weighted = Jagged(item.values_N, item.lengths_B, torch.rand(len(item.values_N)))
    log = LogChunk(log.ids_B, log.session_B, log.time_B, features={"item": weighted})
    sort = SessionSort(tmp_path / "spill", 10_000)
    assert sort.state() is None and not [*sort.sorted_chunks()]
    sort.fill([(log.rows(0, 0), 1), (log, 2), (log.rows(0, 0), 3)])
    assert sort.state() == 3
    chunk = LogChunk.cat([*sort.sorted_chunks()])
    back = chunk.select(chunk.ids_B.argsort()).features["item"]
    assert torch.equal(back.weights_N, weighted.weights_N) and torch.equal(back.values_N, weighted.values_N)


def test_a_session_that_does_not_fit_says_how_much_memory_would_do(tmp_path):
    log = random_log(600, sessions=1)
    sort = SessionSort(tmp_path / "spill", 8_000)
    sort.fill((chunk, 0) for chunk in cut(log, 50))
    with pytest.raises(UserError, match=r"set memory_bytes to at least ([\d,]+)") as said:
        [*sort.sorted_chunks()]
    least = int(str(said.value).rsplit(" ", 1)[1].replace(",", ""))
    assert len([*SessionSort(tmp_path / "spill", least).sorted_chunks()]) == 1 and least >= 4 * num_bytes(log)


def test_a_table_written_with_breaks_has_the_bytes_of_one_written_at_once(tmp_path, monkeypatch):
    """It breaks after each number of chunks that are read, and then after each number of chunks that are written."""
    chunks, add = cut(random_log(400), 25), FeatureTableWriter.add

    def write(folder, given):
        rows = {"rows_per_part": 100, "rows_per_group": 50}
        return write_clustered(given, folder / "table", SCHEMA, 16_000, spill=folder / "spill", **rows)

    whole = write(tmp_path / "whole", chunks)
    for place in range(len(chunks)):
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "broken", breaking(chunks, place))
    for place in itertools.count(1):
        calls = breaking(range(10**6), place)
        monkeypatch.setattr(
            FeatureTableWriter, "add", lambda writer, chunk, calls=calls: [next(calls), add(writer, chunk)]
        )
        with contextlib.suppress(KeyboardInterrupt):
            assert write(tmp_path / "broken", chunks) == whole
            break
    assert place > 3 and whole.num_rows == 400
    files = {name: {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
             for name in ("whole", "broken")}  # fmt: skip
    assert files["whole"] == files["broken"] and not [*tmp_path.glob("*/spill")]
    table = LogChunk.cat([*FeatureTable(tmp_path / "whole/table").log_chunks()])
    assert sorted(samples_of(table)) == samples_of(random_log(400))


def breaking(items, count):
    """The first so many of them, and then Ctrl-C."""
    yield from itertools.islice(items, count)
    raise KeyboardInterrupt


@pytest.mark.parametrize("skip", [0, 1, 25, 26, 60, 99, 100])
def test_what_is_left_after_the_first_samples_is_what_comes_after_them(skip):
    log = random_log(100)
    left = [sample for chunk in without_first(cut(log, 25), skip) for sample in samples_of(chunk)]
    assert left == samples_of(log)[skip:]
