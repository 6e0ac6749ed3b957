"""Tests that every sample is on one side of a split, and which splits leave held-out clicks out of all histories."""

import itertools
from pathlib import Path

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_splits import HeldOutFrom, HeldOutShare, HeldOutTable
from nemo_vfm.recsys.feature_table_data import FeatureTableData
from nemo_vfm.recsys.import_log import ImportLog
from nemo_vfm.recsys.sources.kuairand_csv import COLUMNS, KuaiRandCsv
from nemo_vfm.sparse.log_chunk import LogChunk
from tests.support.jagged_rows import lists
from tests.support.kuairand_files import kuairand_rows, write_kuairand


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("log")
    rows = kuairand_rows(2000, num_users=40)
    rows[:, COLUMNS.index("video_id")] = range(len(rows))  # what is clicked is never clicked again
    source = KuaiRandCsv(paths=[write_kuairand(run / "log.csv", rows)])
    ImportLog(source=source, ids=None, rows_per_group=256, rows_per_part=512).run(Run(run))
    return run / "table"


@pytest.fixture(scope="module")
def log(folder: Path) -> LogChunk:
    return LogChunk.cat([*FeatureTable(folder).log_chunks()])


def sides(folder: Path, held_out, **options) -> tuple[list[int], list[int]]:
    """Ids of the samples of an epoch, and of those held out."""
    data = FeatureTableData(folder=folder, batch_size=64, held_out=held_out, **options)
    data.start(seed=3, first_batch=0)
    batches = itertools.islice(data.train_dataloader(), round(data.batches_per_epoch() + 1))
    held = [number for batch in data.val_dataloader() for number in batch.ids_B.tolist()]
    assert held == [number for batch in data.val_dataloader() for number in batch.ids_B.tolist()]
    trained = [number for batch in batches for number in batch.ids_B.tolist()][: data.num_train_samples()]
    return trained, held


def in_histories(log: LogChunk, trained: list[int], held: list[int]) -> float:
    """The share of the held-out clicks that stand in a training sample's history."""
    place = {number: row for row, number in enumerate(log.ids_B.tolist())}
    users, videos, histories = (lists(log.features[name]) for name in ("user_id", "video_id", "history"))
    times, clicked = log.time_B.tolist(), log.labels["is_click"].tolist()
    seen = {(users[place[n]][0], video) for n in trained for video in histories[place[n]]}
    clicks = [place[n] for n in held if clicked[place[n]]]
    assert len(clicks) > 50 and len(set(times)) > 20
    return sum((users[row][0], videos[row][0]) in seen for row in clicks) / len(clicks)


def test_by_sessions_max_held_out_clicks_are_in_training_histories_and_by_users_or_time_none(folder, log):
    border = int(log.time_B.float().quantile(0.8))
    splits = {"session": HeldOutShare(fraction=0.2), "user": HeldOutShare(fraction=0.2, feature="user_id"),
              "time": HeldOutFrom(time=border)}  # fmt: skip
    leaked = {}
    for name, split in splits.items():
        trained, held = sides(folder, split)
        assert sorted([*trained, *held]) == sorted(log.ids_B.tolist()) and 0.1 < len(held) / len(log) < 0.3
        leaked[name] = in_histories(log, trained, held)
    assert leaked["session"] > 0.5 and leaked["user"] == leaked["time"] == 0
    assert sides(folder, None, val_fraction=0.2) == sides(folder, splits["session"])


def test_no_user_is_on_both_sides_and_no_time_before_the_first_held_out(folder, log):
    by_id = dict(zip(log.ids_B.tolist(), log.features["user_id"].values_N.tolist(), strict=True))
    trained, held = sides(folder, HeldOutShare(fraction=0.3, feature="user_id"))
    assert not {by_id[n] for n in trained} & {by_id[n] for n in held}
    time = dict(zip(log.ids_B.tolist(), log.time_B.tolist(), strict=True))
    border = int(log.time_B.float().quantile(0.5))
    trained, held = sides(folder, HeldOutFrom(time=border))
    assert max(time[n] for n in trained) < border <= min(time[n] for n in held)


def test_another_table_is_held_out_up_to_a_number_of_samples_and_all_of_the_first_is_trained_on(folder, log, tmp_path):
    source = KuaiRandCsv(paths=[write_kuairand(tmp_path / "next.csv", kuairand_rows(700, seed=9))])
    ImportLog(source=source, ids=None, rows_per_group=256).run(Run(tmp_path))
    other = LogChunk.cat([*FeatureTable(tmp_path / "table").log_chunks()])
    for samples in (None, 300, 701):
        trained, held = sides(folder, HeldOutTable(folder=tmp_path / "table", samples=samples))
        assert held == other.ids_B.tolist()[:samples] and sorted(trained) == sorted(log.ids_B.tolist())


def test_what_holds_nothing_or_everything_out_or_cannot_decide_is_refused_by_name(folder, tmp_path):
    with pytest.raises(ValueError, match="both define what is held out"):
        sides(folder, HeldOutFrom(time=1), val_fraction=0.1)
    with pytest.raises(ValueError, match="above 0 and below 1, got 1"):
        HeldOutShare(fraction=1)
    with pytest.raises(UserError, match=r"all samples of .* are held out"):
        sides(folder, HeldOutFrom(time=0))
    with pytest.raises(DataError, match="ids of history, by which samples are held out"):
        sides(folder, HeldOutShare(fraction=0.5, feature="history"))
    with pytest.raises(UserError, match="held_out names users, which the feature table does not have"):
        sides(folder, HeldOutShare(fraction=0.5, feature="users"))
