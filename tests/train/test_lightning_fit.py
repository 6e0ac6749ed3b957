"""Tests that any Lightning project run as a recipe resumes after a kill to the same weights."""

import json
import os
import signal
import sys
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

from nemo_vfm.cli.main import main
from nemo_vfm.core.errors import Preempted
from nemo_vfm.core.preemption import listen_for_signals
from nemo_vfm.core.types.job import Run
from nemo_vfm.train.lightning.fit_settings import TrainerOptions
from nemo_vfm.train.lightning.resume import SaveAndStop
from nemo_vfm.train.lightning_fit import LightningFit
from tests.support import preloaded
from tests.support.faulty_disk import can_mount, fill, in_a_copy, mount
from tests.support.recipe_results import require_figures
from tests.support.repository import ROOT


class Draws(Dataset[torch.Tensor]):
    """Its samples are drawn when they are read."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(4)


class Loud(LightningDataModule):
    """Shuffles, and holds some out."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Draws(), batch_size=2, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Draws(), batch_size=4)


class Net(LightningModule):
    """Draws in its step, too, and logs."""

    def __init__(self, width: int = 8, option: object = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = (self.net(batch) - batch.mean(1, keepdim=True)).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", (self.net(batch) + torch.rand(1)).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]


class EndAt(Callback):
    """A signal, or the loss of the machine, after so many batches of the run; it notes those of this process."""

    def __init__(self, batch: int, number: int, taken: list[int]) -> None:
        self.batch, self.number, self.taken = batch, number, taken

    def on_train_batch_end(self, trainer, *_):
        self.taken.append(trainer.fit_loop.total_batch_idx + 1)
        if self.taken[-1] == self.batch:
            os.kill(os.getpid(), self.number)


def job(batch: int = 0, number: int = signal.SIGTERM, *, taken: list[int] | None = None, **more: Any) -> LightningFit:
    """Three epochs of six steps, with a checkpoint every fourth."""
    options = {"max_epochs": 3, "log_every_n_steps": 1, "val_check_interval": 3, **more.pop("trainer", {})}
    settings: dict[str, Any] = {
        "module": Net, "data": Loud, "accelerator": "cpu", "every_steps": 4,
        "trainer": TrainerOptions(**options),
        "callbacks": {"lr": LearningRateMonitor, "end": partial(EndAt, batch, number, [] if taken is None else taken)},
    }  # fmt: skip
    return LightningFit(**(settings | more))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of the newest checkpoint, with what the optimizer keeps."""
    saved = torch.load(max((folder / "checkpoints").glob("step-*.ckpt")), weights_only=True)
    kept = {f"{n}/{k}": v for n, state in saved["optimizer_states"][0]["state"].items() for k, v in state.items()}
    return saved["state_dict"] | kept


def lines(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What was measured, without the clock."""
    read = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line.pop("step"), {k: v for k, v in line.items() if k != "time_s"}) for line in read]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    outcome = job().run(Run(folder, seed=3))
    assert outcome.figures["steps"] == 18 and {"train_loss", "val_loss"} <= outcome.figures.keys()
    return folder


def require_same(folder: Path, whole: Path) -> None:
    one, two = weights(folder), weights(whole)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert sorted(lines(folder), key=str) == sorted(lines(whole), key=str)


@pytest.mark.parametrize("step", [1, 3, 6, 8, 14])
def test_a_signal_at_any_step_ends_it_with_a_checkpoint_and_what_follows_is_the_same(
    tmp_path: Path, whole: Path, step: int
) -> None:
    with listen_for_signals(), pytest.raises(Preempted, match=f"at step {step}; its checkpoint is in"):
        job(step).run(Run(tmp_path, seed=3))
    assert newest_step(tmp_path) == step
    require_resumed(tmp_path, whole, step)


@pytest.mark.parametrize(
    ("accumulated", "signalled_at", "batches", "step"), [(2, 3, 4, 2), (2, 9, 10, 5), (4, 5, 6, 2)]
)
def test_a_step_of_several_batches_is_finished_before_it_is_saved(
    tmp_path: Path, accumulated: int, signalled_at: int, batches: int, step: int
) -> None:
    """A checkpoint has no gradients. An epoch of six batches ends with a step of two where four make one."""
    more = {"trainer": {"accumulate_grad_batches": accumulated}, "every_steps": 100}
    job(**more).run(Run(tmp_path / "whole", seed=3))
    with listen_for_signals(), pytest.raises(Preempted, match=f"at step {step}; its checkpoint is in"):
        job(signalled_at, **more).run(Run(tmp_path / "run", seed=3))
    assert newest_step(tmp_path / "run") == step
    require_resumed(tmp_path / "run", tmp_path / "whole", batches, **more)


def test_validation_every_so_many_batches_crosses_epochs_where_no_epoch_is_named(tmp_path: Path) -> None:
    """Of six batches each."""
    job(trainer={"val_check_interval": 4, "check_val_every_n_epoch": None}).run(Run(tmp_path, seed=3))
    assert [step for step, line in lines(tmp_path) if "val_loss" in line] == [4, 8, 12, 16]


def test_an_option_that_says_no_or_none_is_one_and_the_others_are_lightnings_own() -> None:
    given = TrainerOptions(max_epochs=1, num_sanity_val_steps=0, limit_val_batches=0.0, benchmark=False).as_kwargs()
    said = {"max_epochs": 1, "num_sanity_val_steps": 0, "limit_val_batches": 0.0, "benchmark": False}
    assert given == {**said, "check_val_every_n_epoch": 1}
    every = dict.fromkeys(signature(TrainerOptions).parameters, 1)
    assert TrainerOptions(**every).as_kwargs() == every  # type: ignore[arg-type]


def require_resumed(folder: Path, whole: Path, batches: int, **more: Any) -> None:
    """Only what comes after these batches is taken again, and gives the same bits: a run begun anew would, too."""
    taken = list[int]()
    job(taken=taken, **more).run(Run(folder, seed=3, resume=True))
    assert taken == [*range(batches + 1, 19)]
    require_same(folder, whole)


def newest_step(folder: Path) -> int:
    return max(int(path.stem.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*.ckpt"))


def test_another_seed_gives_other_weights(tmp_path: Path, whole: Path) -> None:
    job().run(Run(tmp_path, seed=4))
    assert not torch.equal(weights(tmp_path)["net.0.weight"], weights(whole)["net.0.weight"])


def test_lightnings_own_checkpoints_lie_beside_ours(tmp_path: Path) -> None:
    best = partial(ModelCheckpoint, save_top_k=1, monitor="train_loss", filename="best")
    job(callbacks={"best": best}).run(Run(tmp_path / "run"))
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.ckpt")}
    assert "run/checkpoints/best.ckpt" in found and all(path.startswith("run/checkpoints/") for path in found), found


def test_what_cannot_work_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"every_steps \(0\) and keep_last \(2\) must be at least 1"):
        job(every_steps=0)
    with pytest.raises(ValueError, match=r"devices \(2\) x num_nodes \(2\) is 4, but 3"):
        job(devices=2, num_nodes=2).require(3)


@pytest.mark.cluster
def test_two_processes_of_the_command_share_the_data_and_a_signal_ends_both_with_75(tmp_path: Path) -> None:
    recipe = str(ROOT / "recipes/lightning/own_module.yaml")
    here = "tests.train.test_lightning_fit"
    words = [recipe, "--trust", "tests", f"run_dir={tmp_path / 'run'}", f"module._target_={here}.Net",
             f"data._target_={here}.Loud", "devices=2", "accelerator=cpu", "trainer.max_epochs=3"]  # fmt: skip
    end = f"callbacks.end={{_target_: {here}.EndAt, batch: 4, number: 15, taken: []}}"
    command = [sys.executable, "-m", "nemo_vfm", "run"]
    done = preloaded.run([*command, *words, end], timeout=400)
    assert done.returncode == 75 and "at step 4" in " ".join(done.stderr.split()), done.stderr[-3000:]
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["state"], status["ranks"]) == ("preempted", 2) and status["total_steps"] == 9
    assert newest_step(tmp_path / "run") == 4


@pytest.mark.slow  # 3 s, most of it Lightning's
def test_a_full_disk_ends_it_with_a_sentence_and_says_so_in_the_status(tmp_path, monkeypatch, capfd) -> None:
    if not can_mount(tmp_path):
        pytest.skip("this machine lets no test mount a disk of its own (user namespaces are switched off)")
    save = SaveAndStop._save

    def filling(self: SaveAndStop, trainer: Trainer) -> None:
        if trainer.global_step > 64:
            fill(tmp_path)
        save(self, trainer)

    def work() -> int:
        mount(tmp_path, "1m")
        monkeypatch.setattr(SaveAndStop, "_save", filling)
        status = main(["run", str(ROOT / "recipes/lightning/boring.yaml"), f"run_dir={tmp_path}/run"])
        said = json.loads((tmp_path / "run/status.json").read_text())
        assert said["state"] == "failed" and "no space left" in said["error"]
        kept = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
        assert kept == ["step-00000050.ckpt", "step-00000064.ckpt"], "and nothing half written"
        return status

    assert in_a_copy(work) == 2
    assert f"there is no space left on the disk of {tmp_path}" in " ".join(capfd.readouterr().err.split())


def test_a_recipe_runs_checks_and_says_what_is_wrong_with_an_argument(tmp_path: Path, capsys) -> None:
    recipe = str(ROOT / "recipes/lightning/boring.yaml")
    assert main(["check", recipe, "trainer.max_epoch=3"]) == 2
    said = capsys.readouterr()
    assert "did you mean max_epochs" in said.out + said.err
    assert main(["run", recipe, f"run_dir={tmp_path / 'run'}", "trainer.max_epochs=1"]) == 0
    assert "Loss" in (tmp_path / "run/report.html").read_text()


@pytest.mark.slow  # 256 steps
def test_the_demo_learns_as_its_header_says(tmp_path: Path) -> None:
    recipe = "recipes/lightning/boring.yaml"
    assert main(["run", str(ROOT / recipe), f"run_dir={tmp_path / 'run'}"]) == 0
    require_figures(recipe, tmp_path / "run")
