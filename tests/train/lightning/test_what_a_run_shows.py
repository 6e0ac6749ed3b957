"""Tests that a run says when its loss is NaN, who ended it, its loss, and what each validation loader gave."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader

from nemo_vfm.cli.main import main
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.report.page import all_sections, render
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section
from nemo_vfm.runtime.run_status import read_status
from nemo_vfm.train.lightning.fit_settings import TrainerOptions
from nemo_vfm.train.lightning_fit import LightningFit


class Ill(BoringModel):
    """Its loss is NaN in the batches from one on until another, and its weights stay what they are."""

    def __init__(self, first: int = 10**9, last: int = 10**9, *, by_hand: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.automatic_optimization = first, last, not by_hand

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        number = self.current_epoch * self.trainer.num_training_batches + batch_idx + 1
        loss = 0.0 * self.layer(batch).sum() + (torch.nan if self.first <= number <= self.last else 1 / number)
        self.log("train_loss", loss)
        if self.automatic_optimization:
            return loss
        self.optimizers().step()
        return None

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class TwoLoaders(Ill):
    def val_dataloader(self) -> Any:
        return [DataLoader(RandomDataset(32, 4)), DataLoader(RandomDataset(32, 4))]

    def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log_dict({"val_loss": 1.0 + dataloader_idx + self.current_epoch, "val_acc": 0.5})


class Wishes(Callback):
    """Wants the end after a step."""

    def on_train_batch_end(self, trainer, *_: Any) -> None:
        trainer.should_stop = trainer.global_step >= 5


def train(folder: Path, module: Any, epochs: int = 2, **more: Any) -> Outcome:
    """Epochs of twenty steps."""
    options = TrainerOptions(max_epochs=epochs, limit_train_batches=20, limit_val_batches=2, log_every_n_steps=1)
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text("_target_: nemo_vfm.train.lightning_fit.LightningFit\n")
    return LightningFit(module=module, accelerator="cpu", trainer=options, **more).run(Run(folder))


def training(folder: Path) -> Section:
    return next(one for one in all_sections(RunFolder.open(folder)) if one.title == "Training")


def test_a_loss_that_stays_nan_is_said_in_summary_runs_and_report_with_its_first_step(tmp_path: Path, capsys) -> None:
    outcome = train(tmp_path / "a", partial(Ill, 21), on_nan="continue")
    said = "NaN or infinite: loss (since step 21)"
    assert said in outcome.summary and "loss" not in outcome.figures
    assert said in training(tmp_path / "a").lead
    card = training(tmp_path / "a").cards[0]
    assert (card.label, card.value, card.note) == ("training loss", "not finite", "since step 21")
    assert main(["runs", str(tmp_path)]) == 0
    assert said in capsys.readouterr().out
    assert main(["runs", str(tmp_path), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (record["step"], record["loss"], record["not_finite"]["loss"]) == (40, None, 21)


def test_a_loss_that_is_nan_for_a_while_is_no_reason_to_stop_and_is_not_said(tmp_path: Path) -> None:
    outcome = train(tmp_path, partial(Ill, 21, 26))
    assert outcome.summary.startswith("trained 40 steps; checkpoints in")
    assert outcome.figures["loss"] == pytest.approx(1 / 40)
    assert read_status(tmp_path).loss == pytest.approx(1 / 40) and not read_status(tmp_path).not_finite


@pytest.mark.parametrize(("by_hand", "name"), [(False, "loss"), (True, "train_loss")])
def test_a_loss_that_stays_nan_ends_the_run_unless_the_recipe_says_continue(tmp_path, by_hand: bool, name: str) -> None:
    with pytest.raises(UserError, match=rf"stays NaN or infinite.*: {name} \(since step 21\).*on_nan=continue"):
        train(tmp_path, partial(Ill, 21, by_hand=by_hand), epochs=9)
    assert 28 <= read_status(tmp_path).step <= 36


def test_a_callback_that_ends_a_run_at_its_first_nan_does_not_make_it_a_success(tmp_path: Path) -> None:
    early = partial(EarlyStopping, monitor="train_loss", check_on_train_epoch_end=True, patience=9)
    with pytest.raises(UserError, match=r"ends as NaN or infinite.*since step 36"):
        train(tmp_path / "stop", partial(Ill, 36), epochs=9, callbacks={"early": early})
    going_on = train(tmp_path / "go", partial(Ill, 36), epochs=9, callbacks={"early": early}, on_nan="continue")
    assert "ended early by callbacks.early" in going_on.summary and "since step 36" in going_on.summary


def test_the_callback_that_ended_a_run_before_its_length_is_named(tmp_path: Path) -> None:
    early = partial(EarlyStopping, monitor="train_loss", mode="max", patience=1)
    ended = {
        "callbacks.patience, EarlyStopping": {"patience": early, "other": partial(Timer, duration={"days": 1})},
        "callbacks.mine, Wishes": {"mine": Wishes},
    }
    for number, (name, callbacks) in enumerate(ended.items()):
        summary = train(tmp_path / str(number), Ill, epochs=9, callbacks=callbacks).summary
        assert f"steps (ended early by {name}); checkpoints in" in summary
    assert "ended early" not in train(tmp_path / "whole", Ill, epochs=1, callbacks={"patience": early}).summary


def test_two_validation_loaders_are_two_lines_of_one_chart_and_no_noise_levels(tmp_path: Path) -> None:
    train(tmp_path, TwoLoaders)
    parts = "".join(str(one.body) for one in all_sections(RunFolder.open(tmp_path)))
    assert "noise level" not in parts
    assert "Validation loss by loader over step: loader 0 from 1 to 2; loader 1 from 2 to 3" in parts
    assert "val acc by loader" in parts and parts.count("loader 1 from") == 2


def test_a_module_without_a_loss_by_that_name_has_its_own_losses_in_the_first_chart(tmp_path: Path) -> None:
    train(tmp_path, partial(Ill, by_hand=True))
    assert '"Losses over step: train_loss from 1 to 0.025"' in str(training(tmp_path).body)


def test_a_foreign_list_of_what_is_not_finite_breaks_neither_runs_nor_report(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("{}")
    lines = [
        {"step": 1, "not_finite": 5}, {"step": 10**400, "not_finite": ["loss"]}, {"step": True, "not_finite": ["a"]},
        {"step": 2, "not_finite": [7, None, "<b>\x1b[2J"]}, {"not_finite": {"loss": 1}}, {"step": 3, "lr": 0.5},
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert [*read_status(tmp_path).not_finite.values()] == [2] and "\x1b" not in str(read_status(tmp_path).not_finite)
    page = render(tmp_path)
    assert "&lt;b&gt;" in page and "<b>" not in page and "\x1b" not in page and "section failed" not in page
