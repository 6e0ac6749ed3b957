"""Tests that made logs are written whole, to the same bytes after a kill, and that what is said of them is true."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.feature_table.row_order import held_out
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.logistic_regression import LabelledSamples, LogisticModel, LogisticRegression
from nemo_vfm.recsys.make_sessions import MakeSessions
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionGroup, SessionLog
from nemo_vfm.recsys.sessions.teacher import ScoreRanks, Teacher
from nemo_vfm.sparse.dedup_groups import change_statistics
from nemo_vfm.sparse.log_chunk import LogChunk


def log(**changes: int) -> SessionLog:
    """A small log with a history and a teacher, in three windows."""
    history = IdFeature(rows=900, length=5, history=True)
    user = SessionGroup(unchanged=0.8, features={"history": history, "country": IdFeature(rows=30)})
    return SessionLog(
        **{"num_samples": 3_000, "chunk_samples": 500, "window": 1_300, **changes}, samples_per_session=6.0,
        groups={"user": user}, features={"item": IdFeature(rows=60)}, dense=["age"],
        teacher=Teacher(single=["item"], pairs=[["item", "country"]], dense=["age"]),
    )  # fmt: skip


def job(**changes: int | str) -> MakeSessions:
    """With several parts of the table, and shards."""
    settings = {"shards": 2, "val_fraction": 0.3, "rows_per_group": 600, "rows_per_part": 600, **changes}
    return MakeSessions(log=log(), logistic=LogisticRegression(ridges=[3.0, 30.0], max_iterations=10), **settings)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    job().run(Run(folder, seed=5))
    return folder


def whole(folder: Path) -> LogChunk:
    return LogChunk.cat(list(FeatureTable(folder).log_chunks()))


def test_the_table_holds_every_sample_of_the_log_by_session(made: Path):
    wanted, found = log(seed=5).samples(0, 3_000, clustered=True), whole(made / "table")
    assert torch.equal(found.ids_B, wanted.ids_B) and torch.equal(found.session_B, wanted.session_B)
    assert torch.equal(found.labels["teacher"], wanted.labels["teacher"])
    for name, rows in wanted.features.items():
        assert torch.equal(found.features[name].values_N, rows.values_N)
    schema = FeatureTable(made / "table").schema
    assert schema.groups == {"user": ("history", "country")} and schema.windows == ("history",)


def test_what_is_said_of_the_log_is_what_it_is(made: Path):
    said, found = json.loads((made / "sessions.json").read_text()), whole(made / "table")
    statistics = change_statistics([found.features["history"], found.features["country"]], found.session_B)
    assert said["measured"]["samples_per_session"] == pytest.approx(statistics.samples_per_session)
    assert said["measured"]["unchanged"]["user"] == pytest.approx(statistics.unchanged)
    aside = held_out(found.session_B, 5, 0.3)
    model = LogisticModel.load(made / "logistic.safetensors")
    score = model.score(found.features, found.dense["age"][:, None])
    for side, rows in (("train", ~aside), ("held_out", aside)):
        teacher = found.labels["teacher"][rows]
        assert said["measured"]["teacher"][side]["auc"] == pytest.approx(ScoreRanks(teacher).expected_auc(teacher))
        assert said["logistic"]["auc"][side] == pytest.approx(ScoreRanks(score[rows]).expected_auc(teacher), abs=1e-6)
    trained = found.select((~aside).nonzero()[:, 0])
    parts = [LabelledSamples(trained.features, trained.dense["age"][:, None], trained.labels["click"])]
    fits = LogisticRegression(ridges=[3.0, 30.0], max_iterations=10).fits(parts, log().rows())
    scores = {ridge: model.score(found.features, found.dense["age"][:, None])[aside] for ridge, model in fits}
    best = max(ScoreRanks(score).expected_auc(found.labels["teacher"][aside]) for score in scores.values())
    assert said["logistic"]["auc"]["held_out"] == pytest.approx(best, abs=1e-4)
    assert said["measured"]["teacher"]["held_out"]["samples"] == int(aside.sum())
    assert 0.55 < said["logistic"]["auc"]["held_out"] < said["measured"]["teacher"]["held_out"]["auc"] - 0.02
    assert json.loads((made / "ledger.json").read_text())["rows"]["kept"] == 3_000


@pytest.mark.parametrize("shard_by", ["session", "random"])
def test_shards_are_plain_logs_that_hold_each_sample_once(made: Path, tmp_path: Path, shard_by):
    if shard_by == "random":
        job(shard_by="random").run(Run(tmp_path, seed=5))
    folder = made if shard_by == "session" else tmp_path
    shards = [whole(path) for path in sorted((folder / "shards").iterdir())]
    assert sorted(torch.cat([shard.ids_B for shard in shards]).tolist()) == list(range(3_000))
    assert all(bool((shard.time_B.diff() >= 0).all()) and len(shard) > 700 for shard in shards)
    sessions = [set(shard.session_B.tolist()) for shard in shards]
    assert (not sessions[0] & sessions[1]) == (shard_by == "session")
    assert "history" in str(pq.read_schema(next((folder / "shards").rglob("*.parquet"))))


class KilledAtSampleError(Exception):
    """Stands for a kill: nothing of the job runs after it."""


@pytest.mark.parametrize("chunks", [2, 5, 7, 12])
def test_a_killed_run_goes_on_to_the_same_bytes(made: Path, tmp_path: Path, monkeypatch, chunks):
    add, calls = FeatureTableWriter.add, iter(range(chunks))

    def killed(self: FeatureTableWriter, chunk: LogChunk) -> None:
        if next(calls, None) is None:
            raise KilledAtSampleError
        add(self, chunk)

    with monkeypatch.context() as patched:
        patched.setattr(FeatureTableWriter, "add", killed)
        with pytest.raises(KilledAtSampleError):
            job().run(Run(tmp_path, seed=5))
    parts = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("part-*")}
    assert parts or chunks < 5
    assert not job().run(Run(tmp_path, seed=5, resume=True)).did_nothing
    assert contents(tmp_path) == contents(made)
    assert {path: path.stat().st_mtime_ns for path in parts} == parts, "what was whole is not written again"


def test_a_finished_run_does_nothing_and_other_settings_begin_again(made: Path, tmp_path: Path, capsys):
    small = MakeSessions(log=log(num_samples=900))
    first = small.run(Run(tmp_path, seed=1))
    assert small.run(Run(tmp_path, seed=1)).did_nothing and not first.did_nothing
    before = contents(tmp_path / "table")
    MakeSessions(log=log(num_samples=900)).run(Run(tmp_path, seed=2))
    assert contents(tmp_path / "table") != before
    assert "other settings" in capsys.readouterr().err


def test_a_seed_of_the_log_is_stronger_than_that_of_the_run(tmp_path: Path):
    for number in range(2):
        MakeSessions(log=log(num_samples=900, seed=7)).run(Run(tmp_path / str(number), seed=number))
    assert contents(tmp_path / "0" / "table") == contents(tmp_path / "1" / "table")


def test_logistic_regression_needs_labels_and_samples_to_compare_on():
    with pytest.raises(ValueError, match=r"give log\.teacher and val_fraction"):
        MakeSessions(log=log(), logistic=LogisticRegression())
