"""Tests that Lightning's callbacks, data modules and loggers work beside ours, and give the same numbers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    RichProgressBar,
    Timer,
)
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from nemo_vfm.config import RecipeError, build, compose, trust_list
from nemo_vfm.core import ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.loader.lightning_batches import LightningBatches
from nemo_vfm.train.callbacks.validation import Validate
from nemo_vfm.train.job import start
from nemo_vfm.train.module import TrainModule
from nemo_vfm.train.optim import Constant, Straight
from tests.support import preloaded, tiny_training
from tests.support.tiny_training import command, metrics
from tests.support.toy import ToyData
from tests.train.test_job import final, lines, resumed_steps, train

OURS = ("loss", "grad_norm", "lr", "val_loss")


def lightnings() -> dict[str, object]:
    return {
        "lr": LearningRateMonitor(), "summary": ModelSummary(), "stats": DeviceStatsMonitor(cpu_stats=True),
        "timer": Timer(), "bar": RichProgressBar(),
    }  # fmt: skip


class Watching(Callback):
    """A stranger's: notes what the trainer says, logs a number, and may wish for an end after a step."""

    def __init__(self, stop_at: int = 0) -> None:
        self.stop_at = stop_at
        self.seen: list[dict[str, Any]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append({
            "step": trainer.global_step, "loss": float(trainer.callback_metrics["loss"]), "rank": trainer.global_rank,
            "world": trainer.world_size, "first": trainer.is_global_zero,
            "told": trainer.strategy.broadcast(ranks.rank()),
            "mean": float(trainer.strategy.reduce(torch.tensor(float(ranks.rank())))),
        })  # fmt: skip
        pl_module.log("twice", 2.0 * trainer.global_step)
        trainer.should_stop = trainer.should_stop or trainer.global_step == self.stop_at

    def state_dict(self):
        return {"count": len(self.seen)}

    def load_state_dict(self, state_dict):
        self.count_before = state_dict["count"]


def test_lightnings_callbacks_work_beside_ours_and_change_no_bit(tmp_path: Path) -> None:
    train("6 steps", validation=Validate(every_steps=3)).run(Run(tmp_path / "plain", seed=3))
    watching = Watching()
    job = train("6 steps", validation=Validate(every_steps=3), callbacks={**lightnings(), "own": watching})
    job.run(Run(tmp_path / "run", seed=3))
    plain, mine = lines(tmp_path / "plain"), lines(tmp_path / "run")
    assert [[line.get(key) for key in OURS] for line in mine] == [[line.get(key) for key in OURS] for line in plain]
    assert [line["lr-AdamW"] for line in mine] == [line["lr"] for line in mine]
    assert [line["twice"] for line in mine] == [2.0 * line["step"] for line in mine]
    assert all(any(key.startswith("DeviceStatsMonitor") for key in line) for line in mine)
    assert [one["step"] for one in watching.seen] == [1, 2, 3, 4, 5, 6]
    assert [one["loss"] for one in watching.seen] == pytest.approx([line["loss"] for line in mine])
    one, two = final(tmp_path / "plain", 6), final(tmp_path / "run", 6)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_resume_keeps_lightnings_step_rates_and_the_state_of_its_callbacks(tmp_path: Path) -> None:
    train("4 steps", callbacks={"own": Watching(), "lr": LearningRateMonitor()}).run(Run(tmp_path, seed=3))
    watching = Watching()
    train("6 steps", callbacks={"own": watching, "lr": LearningRateMonitor()}).run(Run(tmp_path, seed=3, resume=True))
    assert watching.count_before == 4 and [one["step"] for one in watching.seen] == [5, 6]
    assert [line["lr-AdamW"] for line in lines(tmp_path)] == [line["lr"] for line in lines(tmp_path)]


def test_an_end_that_a_callback_wishes_for_comes_after_the_next_step_with_a_checkpoint(tmp_path: Path) -> None:
    outcome = train("10 steps", callbacks={"own": Watching(stop_at=2)}).run(Run(tmp_path, seed=3))
    assert outcome.figures["steps"] == 3 and "a callback ended it early" in outcome.summary
    assert resumed_steps(tmp_path) == [4, 5, 6, 7, 8, 9, 10]
    train("10 steps").run(Run(tmp_path / "whole", seed=3))
    one, two = final(tmp_path, 10), final(tmp_path / "whole", 10)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_timer_that_has_run_out_ends_a_training(tmp_path: Path) -> None:
    job = train("1000000 steps", schedule=Constant(), callbacks={"timer": Timer(duration={"seconds": 1})})
    assert 1 < job.run(Run(tmp_path)).figures["steps"] < 1_000_000


def test_callbacks_that_cannot_work_are_refused(tmp_path: Path) -> None:
    class Foreign:
        def on_train_batch_end(self, *_: object) -> None: ...

    with pytest.raises(UserError, match=r"callbacks\.best: ModelCheckpoint writes pickles"):
        train(callbacks={"best": ModelCheckpoint()}).run(Run(tmp_path / "1"))
    with pytest.raises(UserError, match=r"callbacks\.early: EarlyStopping needs the epochs"):  # else it never looks
        train(callbacks={"early": EarlyStopping("loss")}).run(Run(tmp_path / "3"))
    with pytest.raises(UserError, match=r"callbacks\.own: Foreign has no on_step"):
        train(callbacks={"own": Foreign()}).run(Run(tmp_path / "2"))


def test_the_module_owns_the_model_and_validates_tests_and_moves_nothing(tmp_path: Path) -> None:
    job = train("4 steps", ema=None, schedule=Straight(), validation=Validate(every_steps=4))
    job.run(Run(tmp_path, seed=3))
    fit = start(job, Run(tmp_path, seed=3))
    module = TrainModule(fit)
    assert module.state_dict().keys() == fit.model.state_dict().keys()
    assert {id(one) for one in module.parameters()} == {id(one) for one in fit.model.parameters()}
    module.load_state_dict(module.state_dict())
    loader = DataLoader(list(fit.data.val_dataloader()), batch_size=None)
    quiet = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    (found,) = quiet.validate(module, loader, verbose=False)
    assert found["val_loss"] == pytest.approx(lines(tmp_path)[-1]["val_loss"], rel=1e-6)
    (found,) = quiet.test(module, loader, verbose=False)
    assert found["test_loss"] == pytest.approx(lines(tmp_path)[-1]["val_loss"], rel=1e-6)


class Module(LightningDataModule):
    """The toy's batches by a loader that shuffles; an epoch has five."""

    def setup(self, stage: str) -> None:
        data = ToyData()
        data.start(seed=0, first_batch=0)
        self.batches = [batch for batch, _ in zip(data.train_dataloader(), range(5), strict=False)]

    def train_dataloader(self) -> DataLoader[Batch]:
        return DataLoader(self.batches, batch_size=None, shuffle=True)  # type: ignore[arg-type]


class Numbers(Module):
    """Its batches are none of ours."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(torch.arange(4.0))  # type: ignore[arg-type]


@pytest.mark.slow
def test_batches_of_a_lightning_data_module_are_trained_on_and_found_again_after_a_resume(tmp_path: Path) -> None:
    train("7 steps", data=Module()).run(Run(tmp_path / "two", seed=5))
    assert resumed_steps(tmp_path / "two", seed=5, duration="12 steps", data=Module()) == [8, 9, 10, 11, 12]
    train("12 steps", data=Module()).run(Run(tmp_path / "one", seed=5))
    one, two = final(tmp_path / "one", 12), final(tmp_path / "two", 12)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert train("2 epochs", data=Module()).run(Run(tmp_path / "epochs")).figures["steps"] == 10


def test_epochs_of_a_lightning_data_module_have_each_batch_once_in_an_order_of_their_own() -> None:
    data = LightningBatches(Module())
    data.start(seed=1, first_batch=0)
    keys = [batch.keys[0] for batch, _ in zip(data.train_dataloader(), range(10), strict=False)]
    assert sorted(keys[:5]) == sorted(keys[5:]) and len(set(keys)) == 5 and keys[:5] != keys[5:]
    halves = LightningBatches(Module())
    halves.start(seed=1, first_batch=3, rank=1, num_ranks=2)
    batch = next(halves.train_dataloader())
    assert (batch.index, len(batch)) == (3, 2)


def test_batches_of_another_kind_are_refused_with_the_job_that_takes_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Numbers yields a Tensor.*LightningFit"):
        train(data=Numbers()).run(Run(tmp_path))


def test_a_lightning_logger_gets_the_numbers_of_every_step(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "csv", name="", version="", flush_logs_every_n_steps=1)
    train("3 steps", loggers={"csv": logger}).run(Run(tmp_path / "run"))
    written = (tmp_path / "csv/metrics.csv").read_text().splitlines()
    assert len(written) == 4 and "loss" in written[0].split(",")


RECIPE = str(Path(tiny_training.RECIPE))
LIGHTNINGS = [
    f"callbacks.{name}={{_target_: lightning.pytorch.callbacks.{kind}}}"
    for name, kind in {"lr": "LearningRateMonitor", "summary": "ModelSummary", "timer": "Timer",
                       "stats": "DeviceStatsMonitor", "bar": "RichProgressBar"}.items()
]  # fmt: skip


def test_a_recipe_names_lightnings_callbacks_and_a_strangers_only_under_trust() -> None:
    job = build(compose(RECIPE, [*LIGHTNINGS, "data.shards=x"]))
    assert isinstance(job.callbacks["bar"], RichProgressBar)
    own = ["callbacks.own={_target_: tests.train.test_lightning.Watching}",
           "loggers.csv={_target_: lightning.pytorch.loggers.CSVLogger, save_dir: x}", "data.shards=x"]  # fmt: skip
    with pytest.raises(RecipeError, match=r"Watching is not trusted"):
        build(compose(RECIPE, own))
    job = build(compose(RECIPE, own), trust_list(["tests", "lightning"]))
    assert isinstance(job.callbacks["own"], Watching) and isinstance(job.loggers["csv"], CSVLogger)


class Telling(Watching):
    """Writes down what it saw, a file a rank."""

    def on_train_end(self, trainer, pl_module):
        Path(trainer.default_root_dir, f"seen-{os.environ['RANK']}.json").write_text(json.dumps(self.seen))


@pytest.mark.cluster
def test_lightnings_callbacks_see_both_ranks_and_a_wish_of_all_ends_both(tmp_path: Path) -> None:
    shards = tiny_training.shards(tmp_path / "shards")
    told = f"callbacks.own={{_target_: {__name__}.Telling, stop_at: 3}}"
    more = [*LIGHTNINGS, told, "parallel.shard=2"]
    words = command(shards, tmp_path / "run", *more, f"--trust={__name__}", steps=6)
    done = preloaded.run(words, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout + done.stderr
    assert "a callback ended it early" in said and said.count("Trainable params") == 1, said
    assert "Warning" not in said, said
    assert [line["step"] for line in metrics(tmp_path / "run")] == [1, 2, 3, 4]
    for rank in (0, 1):
        seen = json.loads((tmp_path / f"run/seen-{rank}.json").read_text())
        assert [one["step"] for one in seen] == [1, 2, 3, 4]
        assert {(one["rank"], one["world"], one["first"], one["told"], one["mean"]) for one in seen} == {
            (rank, 2, rank == 0, 0, 0.5)
        }
    assert all("lr-AdamW" in line for line in metrics(tmp_path / "run"))
