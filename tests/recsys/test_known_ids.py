"""Tests that one vocabulary serves many logs, and that new ids get rows behind the old ones."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_splits import HeldOutTable
from nemo_vfm.recsys.feature_table_data import FeatureTableData
from nemo_vfm.recsys.import_log import ImportLog
from nemo_vfm.recsys.log_import.frequent_ids import FrequentIds, read_vocabulary
from nemo_vfm.recsys.log_import.hashed_ids import HashedIds
from nemo_vfm.recsys.log_import.known_ids import KnownIds
from nemo_vfm.recsys.make_raw_log import MakeRawLog
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionGroup, SessionLog
from nemo_vfm.recsys.sessions.teacher import Teacher
from nemo_vfm.recsys.sources.parquet_log import ParquetLog


def imported(log: Path, day: int, folder: Path, ids: FrequentIds | KnownIds | HashedIds) -> Path:
    source = ParquetLog(paths=[log / f"day-{day}.parquet"], session="session", time=None, labels=["click"],
                        features=["item", "user"], dense=["d"])  # fmt: skip
    ImportLog(source=source, ids=ids, rows_per_group=256).run(Run(folder))
    return folder


def rows(folder: Path) -> dict[str, np.ndarray]:
    return dict(read_vocabulary(folder / "vocabulary.safetensors").ids)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days of raw ids, some of them new on each."""
    viewer = SessionGroup(unchanged=1.0, features={"user": IdFeature(rows=9)})
    made = SessionLog(
        num_samples=4_500, days=3, new_ids=0.3, samples_per_session=5.0, groups={"viewer": viewer},
        features={"item": IdFeature(rows=200)}, dense=["d"],
        teacher=Teacher(single=["item"], dense=["d"], pairs_share=0.0),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("log")
    MakeRawLog(log=made).run(Run(folder))
    return folder


@pytest.fixture(scope="module")
def days(log: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Day 1 counts its ids, day 2 adds its own behind them, day 3 takes those of day 2."""
    folder = tmp_path_factory.mktemp("days")
    first = imported(log, 1, folder / "1", FrequentIds(num_rows=10**6, min_count=3))
    second = imported(log, 2, folder / "2", KnownIds(vocabulary=first, grow=True, min_count=3))
    return [first, second, imported(log, 3, folder / "3", KnownIds(vocabulary=second / "vocabulary.safetensors"))]


def raw_items(log: Path, day: int) -> list[int]:
    return [item for (item,) in pq.read_table(log / f"day-{day}.parquet")["item"].to_pylist()]


def test_new_frequent_ids_come_behind_the_old_ones_and_all_others_share_row_0(log, days):
    old, grown, last = map(rows, days)
    counts = Counter(raw_items(log, 2))
    new = sorted((one for one in counts if counts[one] >= 3 and one not in old["item"]), key=lambda n: (-counts[n], n))
    assert grown["item"].tolist() == [*old["item"].tolist(), *new] and len(new) > 5
    assert all(np.array_equal(last[name], grown[name]) for name in grown)
    row_of = {one: row for row, one in enumerate(grown["item"].tolist(), 1)}
    for number, day in enumerate(days[1:], 2):
        raw = raw_items(log, number)
        chunk = FeatureTable(day / "table").read(0, len(raw))
        expected = [row_of.get(raw[sample], 0) for sample in chunk.ids_B.tolist()]
        assert chunk.features["item"].values_N.tolist() == expected and 0 in expected
    ids = [FeatureTable(day / "table").manifest.ids for day in days]
    assert ids[1] == ids[2] != ids[0]


def test_a_limit_of_rows_counts_the_old_ones(log, days, tmp_path):
    old, grown = rows(days[0])["item"], rows(days[1])["item"]
    for most in (3, len(old) + 1, len(old) + 4):
        ids = KnownIds(vocabulary=days[0], grow=True, num_rows_of={"item": most}, min_count=3)
        found = rows(imported(log, 2, tmp_path / str(most), ids))["item"]
        assert found.tolist() == grown[: max(len(old), most - 1)].tolist()
    with pytest.raises(UserError, match=r"there is no .*vocabulary.safetensors; give the run folder of an ImportLog"):
        imported(log, 2, tmp_path / "none", KnownIds(vocabulary=tmp_path))
    other = ParquetLog(paths=[log / "day-1.parquet"], session=None, time=None, labels=["click"], features=["d"])
    with pytest.raises(UserError, match="column d of"):
        ImportLog(source=other, ids=KnownIds(vocabulary=days[0])).run(Run(tmp_path / "d"))


def data(table: Path, held_out: Path | None = None) -> FeatureTableData:
    other = None if held_out is None else HeldOutTable(folder=held_out / "table")
    return FeatureTableData(folder=table / "table", batch_size=64, held_out=other)


def test_a_held_out_table_of_another_vocabulary_or_hash_is_refused(log, days, tmp_path):
    with pytest.raises(UserError, match=r"map to other rows than those of .*Import it by KnownIds"):
        data(days[0], held_out=days[2]).start(seed=0, first_batch=0)
    data(days[1], held_out=days[2]).start(seed=0, first_batch=0)
    hashed = [imported(log, 1, tmp_path / str(n), HashedIds(num_rows=n)) for n in (7, 8)]
    with pytest.raises(UserError, match="map to other rows"):
        data(hashed[0], held_out=hashed[1]).start(seed=0, first_batch=0)
