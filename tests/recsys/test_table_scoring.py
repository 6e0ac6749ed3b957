"""Tests that a table gets the training's own scores, whatever kills the run and however many ranks share it."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import CorruptCheckpoint, NothingKept, UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.job import MultiRankJob, Run
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.parallel.engine.step_runner import StepRunner
from nemo_vfm.recsys.click import Click
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.feature_table_data import FeatureTableData
from nemo_vfm.recsys.table_scoring import ScoreTable
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.callbacks.predictions import WritePredictions
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from tests.support.ranks import on_ranks
from tests.support.session_chunk import SCHEMA, session_chunk
from tests.support.small_recommenders import small

CHUNK = session_chunk(160, seed=1)
MODEL = partial(small, DLRM, dense=1, bottom=[8], rows={"country": 9}, deduplicated={"user": "pool"})
TASK = Click(labels={"click": 1.0, "like": 0.5})


def data(folder: Path, **options) -> FeatureTableData:
    return FeatureTableData(folder=folder, batch_size=24, **{"val_fraction": 0.4} | options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`table` and `run`: seven steps, with the averaged weights' predictions of what is held out."""
    folder = tmp_path_factory.mktemp("trained")
    writer = FeatureTableWriter(folder / "table", SCHEMA, rows_per_part=256, rows_per_group=64)
    writer.add(CHUNK)
    writer.finish()
    Train(
        model=MODEL, data=data(folder / "table"), task=TASK, optimizer=partial(torch.optim.SGD, lr=0.3),
        loop=Loop(duration=Duration.parse("7 steps"), checkpoint=SaveCheckpoints(every_steps=7)),
        callbacks={"ema": EMA(decay=0.5), "predictions": WritePredictions()}, precision=Precision("fp32"),
    ).run(Run(folder / "run", seed=3))  # fmt: skip
    return folder


def job(trained: Path, **options) -> ScoreTable:
    given = {"model": MODEL, "checkpoint": trained / "run", "task": TASK, "data": data(trained / "table"),
             "precision": Precision("fp32"), "part_batches": 3}  # fmt: skip
    return ScoreTable(**given | options)


def scored(_: int, trained: Path, folder: Path, ranks: int) -> None:
    job(trained, ranks=ranks, keep=["age", "country"]).run(Run(folder, seed=3))


def test_held_out_samples_have_the_scores_of_their_training_to_the_bit(trained, tmp_path):
    outcome = job(trained, samples="held_out").run(Run(tmp_path, seed=3))
    ours, theirs = (pq.read_table(folder / "predictions.parquet") for folder in (tmp_path, trained / "run"))
    assert ours.equals(theirs) and outcome.figures["samples"] == len(ours) > 300
    assert [*ours.column_names] == ["id", "session", "weight", "label_click", "score_click", "label_like", "score_like"]
    assert not list(tmp_path.glob(".scores*")) and isinstance(job(trained), MultiRankJob)
    own = job(trained, samples="held_out", weights="model").run(Run(tmp_path / "own", seed=3))
    assert (
        not own.did_nothing and pq.read_table(tmp_path / "own/predictions.parquet")["score_like"] != ours["score_like"]
    )


def test_a_kill_changes_no_byte_and_another_setting_begins_anew(trained, tmp_path, monkeypatch, capsys):
    made = job(trained, keep=["age", "country"])
    made.run(Run(tmp_path / "whole", seed=3))
    assert re.search(r"score: (\d+)/\1 batches", capsys.readouterr().err), "the last part may be shorter"
    evaluate, calls = StepRunner.evaluate, iter(range(8))

    def dying(engine, batch):
        if next(calls) == 7:
            raise KeyboardInterrupt
        return evaluate(engine, batch)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StepRunner, "evaluate", dying)
        made.run(Run(tmp_path / "killed", seed=3))
    assert len([*(tmp_path / "killed").glob(".scores-*.parquet")]) == 2
    assert not made.run(Run(tmp_path / "killed", seed=3)).did_nothing
    whole_file, killed_file = ((tmp_path / name / "predictions.parquet").read_bytes() for name in ("whole", "killed"))
    assert whole_file == killed_file
    found = pq.read_table(tmp_path / "whole/predictions.parquet").to_pydict()
    assert found["id"] == CHUNK.ids_B.tolist() and found["session"] == CHUNK.session_B.tolist()
    assert found["age"] == CHUNK.dense["age"].tolist()
    assert found["country"] == [[one] for one in CHUNK.features["country"].values_N.tolist()]
    assert job(trained, keep=["age", "country"]).run(Run(tmp_path / "whole", seed=3)).did_nothing
    assert not job(trained, keep=["age"]).run(Run(tmp_path / "whole", seed=3)).did_nothing
    assert "country" not in pq.read_table(tmp_path / "whole/predictions.parquet").column_names


def test_a_table_without_labels_is_scored_and_bad_ids_are_left_out(trained, tmp_path):
    values = CHUNK.features["country"].values_N.clone()
    values[:1] = 77
    features = {**CHUNK.features, "country": replace(CHUNK.features["country"], values_N=values)}
    writer = FeatureTableWriter(tmp_path / "table", replace(SCHEMA, labels=["like"]), rows_per_group=64)
    writer.add(replace(CHUNK, features=features))
    writer.finish()
    given = data(tmp_path / "table", num_rows={"country": 9}, out_of_range="weight_0")
    job(trained, data=given).run(Run(tmp_path / "run", seed=3))
    found = pq.read_table(tmp_path / "run/predictions.parquet")
    assert found.column_names == ["id", "session", "weight", "score_click", "label_like", "score_like"]
    assert {*found["weight"].to_pylist()} == {1.0}
    bad = values[torch.arange(len(values))] == 77
    assert found["id"].to_pylist() == CHUNK.ids_B[~bad].tolist()


def test_what_cannot_be_scored_is_refused_by_name(trained, tmp_path):
    with pytest.raises(NothingKept, match="holds out no samples"):
        job(trained, data=data(trained / "table", val_fraction=0.0), samples="held_out").run(Run(tmp_path, seed=3))
    with pytest.raises(UserError, match="keep names nothing, but the table has age, item, country"):
        job(trained, keep=["nothing"]).run(Run(tmp_path / "keep", seed=3))
    with pytest.raises(UserError, match="keep names 'weight', which is a column of predictions already"):
        job(trained, keep=["weight"]).run(Run(tmp_path / "keep", seed=3))
    with pytest.raises(CorruptCheckpoint, match="another model"):
        job(trained, model=partial(MODEL, top=[5])).run(Run(tmp_path / "model", seed=3))
    with pytest.raises(ValueError, match=r"ranks .0. .* at least 1"):
        job(trained, ranks=0)


@pytest.mark.cluster
def test_several_ranks_write_the_bytes_of_one(trained, tmp_path):
    scored(0, trained, tmp_path / "one", 1)
    on_ranks(2, scored, trained, tmp_path / "two", 2)
    one, two = ((tmp_path / name / "predictions.parquet").read_bytes() for name in ("one", "two"))
    assert one == two and not list((tmp_path / "two").glob(".scores*"))
