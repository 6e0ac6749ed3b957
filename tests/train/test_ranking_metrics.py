"""Tests that held-out samples are ranked, scored and written as a whole, alike on any number of ranks."""

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.metrics.ranking import GroupedScores, ScoreCounts, auc
from nemo_vfm.recsys.click import Click
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.callbacks.predictions import WritePredictions
from nemo_vfm.train.callbacks.stream_metrics import StreamMetrics
from nemo_vfm.train.callbacks.validation import Validate
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.state import validation_batches
from tests.support import click_log
from tests.support.click_log import BATCH, HELD_OUT, job, trained
from tests.support.combinations import cases
from tests.support.ranks import on_ranks
from tests.support.toy import ToyTask
from tests.train.test_job import lines, train

ONE, TWO = {"click": 1.0}, {"click": 1.0, "like": 0.5}


def rows(folder: Path) -> dict[str, list]:
    """Of predictions.parquet, by column."""
    return pq.read_table(folder / "predictions.parquet").to_pydict()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two labels on one process."""
    folder = tmp_path_factory.mktemp("two")
    job(TWO).run(Run(folder, seed=1))
    return folder


def by_hand(folder: Path, average: str = "model") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits, labels, weights) of the held-out samples, (N, 2) and (N,), with the last weights."""
    weights = load_file(folder / f"checkpoints/step-00000008/{average}.safetensors")
    held_out = click_log.ClickLog().val_dataloader()
    logits = torch.cat([one.dense_BF @ weights["line.weight"].T + weights["line.bias"] for one in held_out])
    labels = torch.cat([torch.stack([one.labels["click"], one.labels["like"]], 1) for one in held_out])
    return logits, labels, torch.cat([one.weight_B for one in held_out])


def test_metrics_of_each_label_are_those_of_all_held_out_samples(two: Path) -> None:
    logits, labels, weight = by_hand(two)
    last, details = lines(two)[-1], json.loads((two / "validation.json").read_text())
    assert [line["step"] for line in lines(two) if "val_auc_click" in line] == [4, 8] and details["step"] == 8
    summed = 0.0
    for column, name in enumerate(TWO):
        counts = ScoreCounts.of(logits[:, column], labels[:, column], weight)
        kept = details["labels"][name]
        assert last[f"val_auc_{name}"] == kept["auc"] == pytest.approx(counts.auc(), abs=kept["auc_error"] + 1e-9)
        assert last[f"val_normalised_entropy_{name}"] == pytest.approx(counts.normalised_entropy(), rel=1e-5)
        assert last[f"val_calibration_{name}"] == pytest.approx(counts.calibration(), rel=1e-5)
        assert kept["log_loss"] == pytest.approx(counts.log_loss(), rel=1e-5) and kept["weight"] == counts.weight
        assert sum(one["weight"] for one in kept["reliability"]) == counts.weight
        summed += TWO[name] * counts.log_loss() * counts.weight
    assert last["val_loss"] == pytest.approx(summed / details["labels"]["click"]["weight"], rel=1e-5)


def test_samples_of_a_session_are_ranked_among_each_other_over_all_batches(two: Path) -> None:
    logits, labels, weight = by_hand(two)
    batches = click_log.ClickLog().val_dataloader()
    session = torch.cat([batch.session_B for batch in batches])
    assert any(int(one.session_B[-1]) == int(other.session_B[0]) for one, other in itertools.pairwise(batches))
    kept = json.loads((two / "validation.json").read_text())["groups"]
    for column, name in enumerate(TWO):
        samples = GroupedScores.of(session, logits[:, column], labels[:, column], weight)
        for what, value in samples.measures([1, 2]).items():
            assert kept[f"{what}_{name}"] == pytest.approx(value, rel=1e-6), what
            if not what.startswith("groups"):
                assert lines(two)[-1][f"val_{what}_{name}"] == kept[f"{what}_{name}"]
    assert kept["groups_click"] > kept["groups_with_auc_click"] > 5


def test_groups_are_a_feature_of_one_id_or_sessions_that_are_known(two: Path) -> None:
    batch = click_log.batch(0)
    rows = Jagged(torch.arange(BATCH - 2) // 2, torch.tensor([1] * (BATCH - 2) + [0, 0]))
    grouped = DedupedGroup({"user": Jagged(torch.tensor([8, 9]), torch.ones(2).long())}, torch.arange(BATCH) // 9)
    batch = replace(batch, features={"item": rows, "bag": Jagged(torch.arange(2), torch.tensor([2] + [0] * 15))},
                    groups={"user": grouped})  # fmt: skip
    task = Click(labels=ONE)
    prepared = task.prepare(batch, seed=0, training=False)
    prepared.tags.update(task.scores(torch.zeros(BATCH, 1), prepared))
    item, user = (task.group_scores(prepared, name)[""] for name in ("item", "user"))
    assert item["group"].tolist() == [*rows.values_N.tolist(), 0, 0] and user["group"].tolist() == [8] * 9 + [9] * 7
    assert item["weight"].tolist() == [*batch.weight_B.tolist()[:-2], 0, 0]
    with pytest.raises(DataError, match="one has 2 ids of it"):
        task.group_scores(prepared, "bag")
    with pytest.raises(DataError, match="no feature 'users', which the model reads: did you mean 'user'"):
        task.group_scores(prepared, "users")
    batch.session_B = None
    with pytest.raises(UserError, match="these batches have no sessions"):
        task.group_scores(prepared, "session")
    with pytest.raises(ValueError, match=r"validation.group=user ranks samples, but ToyTask scores none"):
        job(ONE, task=ToyTask(), validation=Validate(group="user"))


def test_the_stream_is_measured_by_the_weights_before_each_step(tmp_path: Path) -> None:
    settings = {"validation": None, "callbacks": {"stream": StreamMetrics(window_steps=1)}}
    for name, rate in (("still", 0.0), ("moving", 50.0)):
        job(ONE, optimizer=partial(torch.optim.SGD, lr=rate), **settings).run(Run(tmp_path / name, seed=1))
    first = load_file(tmp_path / "still/checkpoints/step-00000008/model.safetensors")
    logits = {
        step: click_log.batch(step - 1).dense_BF @ first["line.weight"][0] + first["line.bias"] for step in (1, 8)
    }
    for name, step in (("still", 1), ("still", 8), ("moving", 1)):
        batch, line = click_log.batch(step - 1), lines(tmp_path / name)[step - 1]
        counts = ScoreCounts.of(logits[step], batch.labels["click"], batch.weight_B)
        assert line["stream_auc"] == pytest.approx(counts.auc(), abs=0.02)
        assert line["stream_calibration"] == pytest.approx(counts.calibration(), rel=1e-5)
        assert line["stream_normalised_entropy"] == pytest.approx(counts.normalised_entropy(), rel=1e-5)
    assert lines(tmp_path / "moving")[7]["stream_calibration"] != lines(tmp_path / "still")[7]["stream_calibration"]
    with pytest.raises(UserError, match="scores no training samples"):
        job(ONE, task=ToyTask(), validation=None, callbacks=settings["callbacks"]).run(Run(tmp_path / "toy", seed=1))


def test_predictions_are_of_each_held_out_sample_once_in_their_order_and_agree_with_the_metrics(two: Path) -> None:
    logits, labels, weight = by_hand(two)
    found, counted = rows(two), weight > 0
    ids = [1000 * BATCH + n for n in range(BATCH * (HELD_OUT - 1) + 7) if n % BATCH != 3]
    assert found["id"] == ids and found["session"] == [one // 3 for one in ids]
    assert [*found] == ["id", "session", "weight", "label_click", "score_click", "label_like", "score_like", "teacher"]
    assert found["score_like"] == pytest.approx(logits[counted, 1].sigmoid().tolist(), rel=1e-5)
    assert torch.equal(torch.tensor(found["label_like"]).nan_to_num(9), labels[counted, 1].nan_to_num(9))
    teacher = [float(value) for one in click_log.ClickLog().val_dataloader() for value in one.labels["teacher"]]
    assert found["teacher"] == [value for value, one in zip(teacher, counted, strict=True) if one]
    exact = auc(torch.tensor(found["score_click"]), torch.tensor(found["label_click"]))
    assert lines(two)[-1]["val_auc_click"] == pytest.approx(exact, abs=1e-3)
    assert not list(two.glob(".predictions*"))


def test_any_number_of_held_out_batches_is_merged_into_the_same_metrics(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log of millions only a few are kept apart."""
    monkeypatch.setattr(validation_batches, "_APART", 2)
    job(TWO).run(Run(tmp_path, seed=1))
    whole, merged = (json.loads((folder / "validation.json").read_text())["labels"] for folder in (two, tmp_path))
    assert HELD_OUT > 2 and merged.keys() == whole.keys()
    for name, measured in whole.items():
        assert merged[name]["weight"] == measured["weight"]
        assert merged[name]["auc"] == pytest.approx(measured["auc"], abs=1e-12)
        assert merged[name]["log_loss"] == pytest.approx(measured["log_loss"], rel=1e-9)


def test_predictions_are_made_once_at_the_end(tmp_path: Path) -> None:
    data = click_log.ClickLog()
    job(ONE, data=data, validation=None).run(Run(tmp_path, seed=1))
    assert data.readings == 1 and len(rows(tmp_path)["id"]) == 66


def test_one_label_needs_no_suffix_and_every_score_may_be_kept(tmp_path: Path) -> None:
    average = {"ema": EMA(decay=0.5), "task": Click(labels=ONE, score_step=None)}
    outcome = job(ONE, **average).run(Run(tmp_path, seed=1))
    logits, labels, weight = by_hand(tmp_path, "ema")
    exact = auc(logits[:, 0], labels[:, 0], weight)
    assert lines(tmp_path)[-1]["val_auc"] == outcome.figures["val_auc"] == pytest.approx(exact, rel=1e-12)
    assert "auc_error" not in json.loads((tmp_path / "validation.json").read_text())["labels"]["click"]
    assert [*rows(tmp_path)] == ["id", "session", "weight", "label", "score", "like", "teacher"]
    assert rows(tmp_path)["score"] == pytest.approx(logits[weight > 0, 0].sigmoid().tolist(), rel=1e-5)


@pytest.mark.parametrize("labels", [[0.0], [1.0]])
def test_a_metric_that_is_not_defined_is_left_out_and_said(
    labels: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = click_log.batch

    def with_one_label(index: int):
        batch = real(index)
        batch.labels["click"].fill_(labels[0])
        return batch

    monkeypatch.setattr(click_log, "batch", with_one_label)
    job(ONE).run(Run(tmp_path, seed=1))
    last = lines(tmp_path)[-1]
    assert "val_loss" in last and "val_auc" not in last and "val_normalised_entropy" not in last
    assert ("val_calibration" in last) == (labels == [1.0])


def test_without_held_out_samples_nothing_is_measured_or_written(tmp_path: Path) -> None:
    job(ONE, held_out=0).run(Run(tmp_path, seed=1))
    assert not {"val_auc", "val_loss"} & lines(tmp_path)[-1].keys()
    assert not (tmp_path / "predictions.parquet").exists() and not (tmp_path / "validation.json").exists()


def test_the_best_by_auc_is_the_largest_unless_the_recipe_says_otherwise(tmp_path: Path) -> None:
    assert SaveCheckpoints(metric="val_auc").keep.mode == SaveCheckpoints(metric="val_auc_click").keep.mode == "max"
    assert SaveCheckpoints(metric="val_auc", mode="min").keep.mode == "min"
    assert SaveCheckpoints().keep.mode == SaveCheckpoints(metric="val_normalised_entropy").keep.mode == "min"


def test_a_task_that_scores_nothing_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ToyTask scores no samples"):
        train("2 steps", callbacks={"predictions": WritePredictions()}).run(Run(tmp_path, seed=1))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_label_with_the_name_of_a_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the label 'score' of the data has the same name as a column"):
        batch = click_log.batch(0)
        batch.labels["score"] = batch.labels["teacher"]
        prepared = (task := Click(labels=ONE)).prepare(batch, seed=0, training=False)
        prepared.tags |= task.scores(torch.zeros(BATCH, 1), prepared)
        task.columns(prepared)


@pytest.mark.cluster
@pytest.mark.parametrize("count", cases([2, 4], [2]))
def test_several_ranks_give_the_metrics_and_predictions_of_one(two: Path, tmp_path: Path, count: int) -> None:
    on_ranks(count, trained, tmp_path, TWO, count)
    for ours, theirs in zip(lines(tmp_path), lines(two), strict=True):
        assert ours.keys() == theirs.keys()
        assert {name: ours[name] for name in ours if name != "time_s"} == pytest.approx(
            {name: theirs[name] for name in theirs if name != "time_s"}, rel=1e-5
        )
    ours, theirs = rows(tmp_path), rows(two)
    assert ours["id"] == theirs["id"] and ours["teacher"] == theirs["teacher"]
    assert ours["score_click"] == pytest.approx(theirs["score_click"], rel=1e-5)
    assert not list(tmp_path.glob(".predictions*"))
