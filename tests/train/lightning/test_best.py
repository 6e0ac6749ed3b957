"""Tests that the best checkpoint of a Lightning run is the one that the metric says, and stays."""

import math
import signal
from functools import partial
from pathlib import Path

import pytest
import torch

from nemo_vfm.core.errors import Preempted, UserError
from nemo_vfm.core.preemption import listen_for_signals
from nemo_vfm.core.types.job import Run
from nemo_vfm.runtime.recipe_metric import recipe_metric
from nemo_vfm.train.lightning.best import BestSoFar, KeepBest, find_checkpoint, list_checkpoints
from tests.train.test_lightning_fit import EndAt, Net, job


class Scored(Net):
    """Its validation says what is in the list, by optimizer step."""

    def __init__(self, scores: dict[int, float]) -> None:
        super().__init__()
        self.scores = scores

    def validation_step(self, batch, batch_idx):
        self.log("score", self.scores.get(self.trainer.global_step, 9.0))


def scored(scores: dict[int, float], end: int = 0, **more):
    """Three epochs of six steps, validated every third."""
    callbacks = {"end": partial(EndAt, end, signal.SIGTERM, [])}
    keep = more.pop("keep_best", KeepBest(metric="score", mode="min"))
    given = {"module": partial(Scored, scores), "callbacks": callbacks, "every_steps": 100, "keep_last": 1}
    return job(keep_best=keep, **given | more)


@pytest.mark.parametrize(
    ("scores", "mode", "best"),
    [({3: 2.0, 9: 1.0, 15: 1.0}, "min", 9), ({3: 1.0, 6: math.nan}, "min", 3), ({12: 99.0}, "max", 12),
     ({18: 0.5, 3: 1.0}, "min", 18)],
)  # fmt: skip
def test_the_first_of_the_best_stays_beside_the_newest(tmp_path, scores, mode, best):
    scored(scores, keep_best=KeepBest(metric="score", mode=mode)).run(Run(tmp_path, seed=3))
    assert [path.name for path in list_checkpoints(tmp_path)] == sorted(
        {f"step-000000{best:02}.ckpt", "step-00000018.ckpt"}
    )
    assert find_checkpoint(tmp_path, "best") == tmp_path / f"checkpoints/step-000000{best:02}.ckpt"
    assert torch.load(find_checkpoint(tmp_path, "best"), weights_only=True)["global_step"] == best
    assert find_checkpoint(tmp_path, "last").name == "step-00000018.ckpt"


@pytest.mark.parametrize("end", [4, 9, 11])
def test_the_choice_survives_a_resume(tmp_path: Path, end: int) -> None:
    """The best of all comes before the signal, and what comes after is better than nothing alone."""
    scores = {3: 1.0, 15: 2.0}
    with listen_for_signals(), pytest.raises(Preempted):
        scored(scores, end).run(Run(tmp_path, seed=3))
    (tmp_path / "checkpoints/best.ckpt").unlink()  # as where a kill came between the checkpoint and the link
    scored(scores).run(Run(tmp_path, seed=3, resume=True))
    assert find_checkpoint(tmp_path, "best").name == "step-00000003.ckpt"


def test_a_metric_of_the_training_is_judged_at_the_end_of_its_epochs(tmp_path: Path) -> None:
    scored({}, keep_best=KeepBest(metric="train_loss", mode="min"), trainer={"limit_val_batches": 0}).run(Run(tmp_path))
    best = BestSoFar(tmp_path / "checkpoints", KeepBest(metric="train_loss", mode="min"))
    best.load_state_dict(next(state for name, state in torch.load(find_checkpoint(tmp_path, "last"), weights_only=True)[
        "callbacks"].items() if name == "SaveAndStop"))  # fmt: skip
    assert best.path == find_checkpoint(tmp_path, "best") and math.isfinite(best.score) and best.step % 6 == 0


def test_ranks_follow_the_first_also_where_it_alone_has_logged_the_metric(tmp_path, monkeypatch):
    said = list[str]()
    monkeypatch.setattr("nemo_vfm.train.lightning.best.first_says", lambda text: said.append(text) or "0.5")
    assert BestSoFar(tmp_path, KeepBest(metric="acc", mode="max")).improves({}, 3)
    assert said == ["nan"], "every rank takes part"


def test_a_score_of_another_metric_is_forgotten(tmp_path: Path) -> None:
    one, other = (BestSoFar(tmp_path, KeepBest(metric=name, mode="max")) for name in ("acc", "auc"))
    one.improves({"acc": 0.9}, 3)
    other.load_state_dict(one.state_dict())
    assert other.improves({"auc": 0.1}, 6) and not one.improves({"acc": 0.9}, 6)


def test_a_metric_that_nobody_logs_is_named_and_there_is_no_best(tmp_path: Path, capfd) -> None:
    scored({}, keep_best=KeepBest(metric="val_los", mode="min")).run(Run(tmp_path))
    assert "finite val_los; the module logged" in " ".join("".join(capfd.readouterr()).split())
    with pytest.raises(UserError, match="has no best checkpoint"):
        find_checkpoint(tmp_path, "best")


def test_the_list_of_runs_stars_by_the_same_metric(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("steps: {fit: {keep_best: {metric: acc, mode: max}}}\n")
    metric = recipe_metric(tmp_path)
    assert metric is not None and (metric.name, metric.mode, metric.step) == ("acc", "max", "fit/")
