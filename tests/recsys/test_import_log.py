"""Tests that every row of a log is accounted for, and that kills, memory and blocks change no byte of the table."""

import json
import math
import random
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nemo_vfm.core.errors import DataError, NothingKept
from nemo_vfm.core.types.job import Job, Run
from nemo_vfm.recsys import import_log
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.import_log import ImportLog
from nemo_vfm.recsys.log_import import log_intake
from nemo_vfm.recsys.log_import.frequent_ids import FrequentIds, read_vocabulary
from nemo_vfm.recsys.log_import.hashed_ids import HashedIds
from nemo_vfm.recsys.log_import.log_intake import RowSampling
from nemo_vfm.recsys.sources import text_blocks
from nemo_vfm.recsys.sources.criteo_tsv import CriteoTsv
from nemo_vfm.recsys.sources.kuairand_csv import KuaiRandCsv
from nemo_vfm.recsys.sources.log_reading import LogPosition
from nemo_vfm.recsys.sources.parquet_log import ParquetLog
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from tests.support import preloaded
from tests.support.criteo_files import write_criteo
from tests.support.jagged_rows import lists
from tests.support.killed_import import imports
from tests.support.kuairand_files import kuairand_rows, write_kuairand
from tests.support.log_samples import random_log, samples_of


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of Criteo's with some bad rows, one of KuaiRand's, and one in CSV with weights."""
    folder = tmp_path_factory.mktemp("logs")
    lines = write_criteo(folder / "criteo.tsv", 4000).read_bytes().splitlines(keepends=True)
    for place in (0, 1700, 1701, 3999):
        lines[place] = b"no sample\n"
    (folder / "criteo.tsv").write_bytes(b"".join(lines))
    write_kuairand(folder / "kuairand.csv", kuairand_rows(9000, num_users=300))
    rows = (f"u{n * 7 % 900},{n % 5 // 4},{n * n % 99},{n % 3 + 1 - 2 * (n == 700)}\n" for n in range(9000))
    (folder / "clicks.csv").write_text("user,click,item,w\n" + "".join(rows))
    return folder


def run(job: ImportLog, folder: Path, seed: int = 0):
    """Its outcome, once the ledger adds up and the table is as large as it says."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome = job.run(Run(folder, seed=seed))
    rows = json.loads((folder / "ledger.json").read_text())["rows"]
    assert rows["in"] == rows["kept"] + sum(rows["dropped"].values()) + sum(rows["failed"].values())
    assert FeatureTable(folder / "table").num_rows == rows["kept"] == outcome.figures["kept"]
    assert (" sessions in " in outcome.summary) == (outcome.figures["sessions"] < rows["kept"])
    assert {path.name for path in folder.iterdir()} - {"vocabulary.safetensors"} == {
        "table", "ledger.json", "plan.json", "bad_rows.jsonl"
    }  # fmt: skip
    return outcome


def table(folder: Path) -> LogChunk:
    read = FeatureTable(folder / "table")
    read.verify()
    return LogChunk.cat([*read.log_chunks()])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(logs, tmp_path_factory) -> dict[str, Path]:
    """All, imported without a break."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "BLOCK_BYTES", 100_000)
        for name, job in imports(logs).items():
            run(job, folder / name, seed=1)
    return {name: folder / name for name in imports(logs)}


@pytest.mark.slow
def test_two_kills_leave_the_bytes_of_a_run_without(logs, whole):
    draw = random.Random(3)
    kill(logs, [draw.randrange(10, 60), draw.randrange(30, 60)])
    assert {name: contents(logs / name) for name in whole} == {name: contents(whole[name]) for name in whole}


@pytest.mark.soak
def test_a_kill_at_any_file_operation_leaves_the_bytes_of_a_run_without(logs, whole):
    """The second kill hits what the first left behind."""
    operations = int(kill(logs, []))
    draw = random.Random(4)
    for number in range(1, operations, 3):
        for name in whole:
            shutil.rmtree(logs / name)
        kill(logs, [number, draw.randrange(1, 25)])
        assert {name: contents(logs / name) for name in whole} == {name: contents(whole[name]) for name in whole}


def kill(folder: Path, operations: list[int]) -> str:
    """Run the imports in processes that die at these file operations, and once more to the end."""
    command = [sys.executable, "-m", "tests.support.killed_import", str(folder), *map(str, operations)]
    done = preloaded.run(command)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_it_is_a_job_and_does_nothing_the_second_time(logs, whole):
    job = imports(logs)["criteo"]
    assert isinstance(job, Job)
    before = contents(whole["criteo"])
    assert run(job, whole["criteo"], seed=1).did_nothing and contents(whole["criteo"]) == before


def test_rows_are_down_sampled_and_failed_by_name(whole):
    rows = json.loads((whole["criteo"] / "ledger.json").read_text())["rows"]
    assert rows["in"] == 4000 and rows["failed"] == {"it does not have 40 columns": 4}
    assert rows["dropped"].keys() == {"down-sampling"} and rows["dropped"]["down-sampling"] == pytest.approx(
        800, abs=80
    )
    bad = [json.loads(line) for line in (whole["criteo"] / "bad_rows.jsonl").read_text().splitlines()]
    assert [row["line"] for row in bad] == [1, 1701, 1702, 4000] and bad[0]["file"].endswith("criteo.tsv")


def test_the_negatives_that_stay_follow_from_seed_and_row_and_weigh_for_those_that_do_not(logs, whole, tmp_path):
    job = imports(logs)["clicks"]
    every, found = LogChunk.cat([read.chunk for read in job.source.read(LogPosition())]), table(whole["clicks"])
    found, rows = found.select(found.ids_B.argsort()), json.loads((whole["clicks"] / "ledger.json").read_text())["rows"]
    own_B = every.weight_B[found.ids_B]
    positive_B = found.labels["click"] > 0
    assert torch.equal(found.weight_B, own_B.where(positive_B, own_B / 0.3)) and {1, 2, 3} == {*own_B.tolist()}
    assert rows["failed"] == {"the weight is not above 0, or infinite": 1} and rows["in"] == 9000
    assert rows["dropped"]["down-sampling of negatives"] == pytest.approx(0.8 * 7200 * 0.7, rel=0.1)
    shuffled = every.select(torch.randperm(9000, generator=torch.Generator().manual_seed(0)))
    kept = {
        (name, seed): sorted(RowSampling(0.8, "session", seed, 0.3).sample_rows(one, Counter()).ids_B.tolist())
        for name, one in (("order", every), ("another", shuffled)) for seed in (1, 2)
    }  # fmt: skip
    assert kept["order", 1] == kept["another", 1] != kept["order", 2]
    assert {*kept["order", 1]} - {*found.ids_B.tolist()} <= {700}
    sessions = {*RowSampling(0.8, "session", 1).sample_rows(every, Counter()).session_B.tolist()}
    clicks = {row for row in range(9000) if every.labels["click"][row] and int(every.session_B[row]) in sessions}
    assert {*found.ids_B[positive_B].tolist()} == clicks - {700}


def test_samples_and_negatives_are_drawn_apart(tmp_path):
    count = 20_000
    chunk = LogChunk(*[torch.arange(count)] * 3, labels={"click": torch.arange(count) % 4 // 3 * 1.0})
    for by in ("session", "sample"):
        kept = RowSampling(0.5, by, 1, 0.5).sample_rows(chunk, Counter())
        negatives = int((kept.labels["click"] == 0).sum())
        assert negatives == pytest.approx(count * 0.75 * 0.5 * 0.5, rel=0.05)
        assert kept.weight_B.sum() == pytest.approx(count * 0.5, rel=0.05)


def test_soft_labels_which_leave_no_negatives_to_drop_are_said_once(tmp_path, capsys):
    one = {"y": [0.0, 1.0] * 20, "soft": [0.1, 0.9] * 20, "f": [*range(40)]}
    pq.write_table(pa.table(one), tmp_path / "log.parquet")
    for labels, times in ((["y", "soft"], 1), (["y"], 0)):
        source = ParquetLog(paths=[tmp_path / "log.parquet"], session=None, time=None, labels=labels, features=["f"])
        ImportLog(source=source, ids=None, keep_negatives=0.5).run(Run(tmp_path / labels[-1]))
        assert capsys.readouterr().err.count("keep_negatives=0.5 dropped no sample") == times
    assert table(tmp_path / "soft").weight_B.tolist() == [1.0] * 40


def test_numbers_that_no_training_could_take_are_bad_rows_of_any_source(tmp_path):
    one = {"y": [0.0, 7.0, 1.0, -0.5, 0.25], "d": [0.5, 1.0, math.inf, 1e300, math.nan], "f": [*range(5)]}
    pq.write_table(pa.table(one), tmp_path / "log.parquet")
    log = ParquetLog(
        paths=[tmp_path / "log.parquet"], session=None, time=None, labels=["y"], features=["f"], dense=["d"]
    )
    with pytest.raises(DataError, match=r"log.parquet, line 2: the label y is not in 0..1"):
        run(ImportLog(source=log, ids=None), tmp_path / "stopped")
    run(ImportLog(source=log, ids=FrequentIds(num_rows=9, min_count=1), on_bad_row="drop"), tmp_path / "run")
    listed = [json.loads(line) for line in (tmp_path / "run/bad_rows.jsonl").read_text().splitlines()]
    reasons = {row["line"]: row["reason"] for row in listed}
    label, number = "the label y is not in 0..1", "d is infinite, or beyond float32"
    assert reasons == {2: label, 3: number, 4: label} and table(tmp_path / "run").ids_B.tolist() == [0, 4]
    with pytest.raises(DataError, match=r"line 2: the label y is not in 0..1"):
        [*log.log_chunks()]


@pytest.mark.parametrize("ids", [HashedIds(num_rows=5), FrequentIds(num_rows=5, min_count=1)])
def test_raw_features_keep_their_numbers_and_are_counted_in_no_vocabulary(ids, tmp_path):
    columns = {"y": [0.0, 1.0], "item": [10**12, 7], "clicked_at": [[3, 10**15], []]}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    log = ParquetLog(
        paths=[tmp_path / "log.parquet"], session=None, time=None, labels=["y"], features=["item", "clicked_at"]
    )
    run(ImportLog(source=log, ids=ids, raw_features=["clicked_at"]), tmp_path / "run")
    found = table(tmp_path / "run").features
    assert lists(found["clicked_at"]) == columns["clicked_at"] and int(found["item"].values_N.max()) < 5
    if isinstance(ids, FrequentIds):
        assert [*read_vocabulary(tmp_path / "run/vocabulary.safetensors").ids] == ["item"]
    with pytest.raises(ValueError, match="raw_features names items, but the source has item, clicked_at"):
        ImportLog(source=log, ids=ids, raw_features=["items"])


def test_all_bad_rows_are_counted_and_the_first_of_them_listed(logs, tmp_path, monkeypatch):
    monkeypatch.setattr(log_intake, "MAX_LISTED", 3)
    job = ImportLog(source=CriteoTsv(paths=[logs / "criteo.tsv"]), ids=None, on_bad_row="drop")
    assert run(job, tmp_path / "run").figures["failed"] == 4
    bad = (tmp_path / "run/bad_rows.jsonl").read_text().splitlines()
    assert [json.loads(row)["line"] for row in bad] == [1, 1701, 1702]


def test_criteo_keeps_its_order_and_kuairand_has_whole_sessions_in_order_of_time(whole):
    criteo, kuairand = table(whole["criteo"]), table(whole["kuairand"])
    assert (criteo.ids_B.diff() > 0).all()
    assert len({*kuairand.session_B.tolist()}) == FeatureTable(whole["kuairand"] / "table").manifest.sessions
    same = kuairand.session_B.diff() == 0
    assert (kuairand.time_B.diff()[same] >= 0).all() and same.any()


def test_the_table_holds_what_the_source_says(logs, whole):
    """Sessions that stay are whole, with the histories that they had before others were left out."""
    source = KuaiRandCsv(paths=[logs / "kuairand.csv"], history=5)
    log = LogChunk.cat([*source.log_chunks()])
    order = np.lexsort([column.numpy() for column in (log.ids_B, log.time_B, log.session_B)])
    log = source.complete(log.select(torch.from_numpy(order)))
    rows = {name: HashedIds(num_rows=1000).table_rows(name, ids) for name, ids in log.features.items()}
    found = table(whole["kuairand"])
    kept = torch.isin(log.session_B, found.session_B)
    expected = replace(log, features=rows).select(kept.nonzero().squeeze(1))
    assert sorted(samples_of(found)) == sorted(samples_of(expected)) and 0.7 < kept.float().mean() < 0.9


def test_ids_are_counted_over_the_whole_log_before_they_get_rows(logs, whole):
    reads = [read.chunk for read in CriteoTsv(paths=[logs / "criteo.tsv"]).read(LogPosition())]
    log, found = LogChunk.cat(reads), table(whole["criteo"])
    log = log.select(torch.isin(log.ids_B, found.ids_B).nonzero().squeeze(1))
    vocabulary = FrequentIds(num_rows=500).vocabulary(reads)
    for name, ids in log.features.items():
        assert lists(found.features[name]) == lists(vocabulary.table_rows(name, ids))
    assert (
        read_vocabulary(whole["criteo"] / "vocabulary.safetensors").ids["C1"].tolist() == vocabulary.ids["C1"].tolist()
    )


@pytest.mark.parametrize("by", ["session", "sample"])
def test_half_of_a_log_is_the_same_half_in_any_order_and_another_by_another_seed(by):
    log = random_log(4000, sessions=2000)
    shuffled = log.select(torch.randperm(4000, generator=torch.Generator().manual_seed(0)))
    kept = [sorted(samples_of(RowSampling(0.5, by, seed).sample_rows(one, Counter())))
            for seed, one in ((0, log), (0, shuffled), (1, log))]  # fmt: skip
    assert kept[0] == kept[1] != kept[2] and len(kept[0]) == pytest.approx(2000, abs=150)
    split = {sample[1] for sample in kept[0]} & {sample[1] for sample in {*samples_of(log)} - {*kept[0]}}
    assert bool(split) == (by == "sample")


def test_ids_are_spread_over_the_rows_of_each_table_and_stay_where_they_are():
    ids = Jagged(torch.arange(-5000, 5000), torch.ones(10_000, dtype=torch.int64))
    found = HashedIds(num_rows=100, num_rows_of={"big": 1000}).table_rows("small", ids).values_N
    counts = torch.bincount(found, minlength=100)
    assert len(counts) == 100 and counts.min() > 60 and counts.max() < 140
    assert int(HashedIds(num_rows=100, num_rows_of={"big": 1000}).table_rows("big", ids).values_N.max()) == 999
    golden = 0x9E3779B97F4A7C15  # the first two numbers of SplitMix64 from seed 0 are published
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    states = Jagged(torch.tensor([golden - 2**64, 2 * golden % 2**64]), torch.tensor([2]))
    rows = HashedIds(num_rows=10**9).table_rows("any", states).values_N.tolist()
    assert rows == [number % 10**9 for number in published]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        HashedIds(num_rows=5, num_rows_of={"a": 0})


def test_a_bad_row_stops_an_import_that_is_not_told_to_drop_it(logs, tmp_path):
    job = ImportLog(source=CriteoTsv(paths=[logs / "criteo.tsv"]), ids=None)
    with pytest.raises(DataError, match=r"criteo.tsv, line 1: it does not have 40 columns. Set on_bad_row: drop"):
        job.run(Run(tmp_path))
    assert not (tmp_path / "table").exists()


def test_a_file_of_another_kind_stops_the_import_in_any_case(tmp_path):
    (tmp_path / "test.txt").write_text("1\t2\n" * 1000)
    job = ImportLog(source=CriteoTsv(paths=[tmp_path / "test.txt"]), ids=None, on_bad_row="drop")
    with pytest.raises(DataError, match=r"none of 1,000 rows from line 1 of .*test.txt on is a sample"):
        job.run(Run(tmp_path))
    (tmp_path / "test.txt").write_text("1\t2\n" * 3)
    with pytest.raises(NothingKept, match="none of 3 rows is in the table"):
        job.run(Run(tmp_path))


def test_a_log_or_settings_that_changed_are_imported_again_and_memory_is_no_such_setting(logs, tmp_path):
    path = tmp_path / "log.csv"
    write_kuairand(path, kuairand_rows(100))

    def imported(history: int, memory_bytes: int):
        job = ImportLog(source=KuaiRandCsv(paths=[path], history=history), ids=None, memory_bytes=memory_bytes)
        settings = {"source": {"history": history}, "memory_bytes": memory_bytes}
        (tmp_path / "run").mkdir(exist_ok=True)
        return job.run(Run(tmp_path / "run", settings))

    assert not imported(3, 1 << 20).did_nothing and imported(3, 1 << 21).did_nothing
    assert not imported(4, 1 << 20).did_nothing and imported(4, 1 << 20).did_nothing
    write_kuairand(path, kuairand_rows(101))
    assert imported(4, 1 << 20).figures["kept"] == 101


def test_each_argument_that_the_table_follows_from_makes_it_anew(tmp_path):
    pq.write_table(pa.table({"y": [0.0, 1.0] * 50, "f": [*range(100)]}), tmp_path / "log.parquet")
    source = ParquetLog(paths=[tmp_path / "log.parquet"], session=None, time=None, labels=["y"], features=["f"])
    given = {"keep_fraction": 0.9, "keep_by": "sample", "keep_negatives": 0.9, "rows_per_part": 64,
             "rows_per_group": 32, "on_bad_row": "drop", "raw_features": ["f"]}  # fmt: skip
    options: dict[str, object] = {"rows_per_group": 16, "keep_negatives": 0.8}
    for name, value in given.items():
        before = ImportLog(source=source, ids=None, **options)
        before.run(Run(tmp_path / "run"))
        assert before.run(Run(tmp_path / "run")).did_nothing
        options[name] = value
        assert not ImportLog(source=source, ids=None, **options).run(Run(tmp_path / "run")).did_nothing, name


def test_a_log_that_changed_leaves_nothing_in_what_comes_of_the_next(tmp_path):
    """Neither the ids that were counted, nor rows that failed."""
    path = write_criteo(tmp_path / "log.tsv", 400)
    job = ImportLog(source=CriteoTsv(paths=[path]), ids=FrequentIds(num_rows=50), on_bad_row="drop")
    path.write_bytes(b"no sample\n" + path.read_bytes())
    run(job, tmp_path / "again")
    path.write_bytes(b"".join(write_criteo(path, 400).read_bytes().splitlines(keepends=True)[250:]))
    run(job, tmp_path / "again")
    run(job, tmp_path / "first")
    assert contents(tmp_path / "again") == contents(tmp_path / "first")


class StoppedError(Exception):
    """Stands for a kill: nothing of the job runs after it."""


@pytest.mark.parametrize(("name", "chunks"), [("criteo", 6), ("kuairand", 3)])
def test_an_import_that_was_stopped_reads_counts_and_writes_nothing_twice(
    logs, whole, tmp_path, monkeypatch, name, chunks
):
    job, folder, reads = imports(logs)[name], tmp_path / name, []
    add, read, left = FeatureTableWriter.add, import_log.intake, iter(range(chunks))

    def stopped(self, chunk):
        if next(left, None) is None:
            raise StoppedError
        add(self, chunk)

    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 100_000)
    monkeypatch.setattr(import_log, "intake", lambda *of, **how: reads.append(of[1].counts.total) or read(*of, **how))
    with monkeypatch.context() as patch, pytest.raises(StoppedError):
        patch.setattr(FeatureTableWriter, "add", stopped)
        folder.mkdir()
        job.run(Run(folder, seed=1))
    parts = {path: path.stat().st_mtime_ns for path in folder.rglob("part-*")}
    counted = (folder / "vocabulary.safetensors").stat().st_mtime_ns if name == "criteo" else 0
    assert parts and {*reads} == {0}
    reads.clear()
    run(job, folder, seed=1)
    assert len(reads) == 1 and reads[0] > 500
    assert {path: path.stat().st_mtime_ns for path in parts} == parts
    assert not counted or (folder / "vocabulary.safetensors").stat().st_mtime_ns == counted
    assert contents(folder) == contents(whole[name])


def test_groups_of_the_recipe_take_the_place_of_the_sources(logs, tmp_path):
    source = KuaiRandCsv(paths=[logs / "kuairand.csv"])
    job = ImportLog(source=source, ids=HashedIds(num_rows=50), groups={"all": ["user_id", "history"]}, windows=[])
    run(job, tmp_path / "run")
    found = FeatureTable(tmp_path / "run/table")
    assert found.schema.groups == {"all": ("user_id", "history")} and not found.schema.windows
    assert max(int(ids.values_N.max()) for ids in table(tmp_path / "run").features.values()) == 49


@pytest.mark.parametrize("by", ["session", "sample"])
def test_a_part_of_a_log_has_whole_sessions_or_single_samples_as_the_recipe_says(tmp_path, by):
    path = write_kuairand(tmp_path / "log.csv", kuairand_rows(600, num_users=20))
    for name, settings in (("all", {}), ("half", {"keep_fraction": 0.5, "keep_by": by})):
        run(ImportLog(source=KuaiRandCsv(paths=[path]), ids=None, **settings), tmp_path / name)
    every, half = (Counter(table(tmp_path / name).session_B.tolist()) for name in ("all", "half"))
    assert half.total() == pytest.approx(300, abs=120)
    assert all(half[session] == every[session] for session in half) == (by == "session")


@pytest.mark.parametrize(("settings", "said"), [
    ({"keep_fraction": 0}, "keep_fraction"), ({"keep_fraction": 1.5}, "keep_fraction"), ({"memory_bytes": 9}, "memory"),
    ({"keep_negatives": 0}, "keep_negatives"), ({"keep_negatives": 1.1}, "keep_negatives"),
    ({"groups": {"a": ["b"]}}, "names b"), ({"rows_per_part": 3, "rows_per_group": 2}, "not a multiple"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused_before_a_run(settings, said):
    with pytest.raises(ValueError, match=said):
        ImportLog(source=CriteoTsv(paths=[Path("a")]), ids=None, **settings)
