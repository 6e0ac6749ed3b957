"""Tests that a resumed Lightning run decides, measures and reads as the run that nobody killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, EarlyStopping, LearningRateFinder, LearningRateMonitor
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler
from torchmetrics import MaxMetric, MeanMetric, MetricCollection, MetricTracker, MinMaxMetric
from torchmetrics.classification import BinaryAUROC, BinaryF1Score, BinaryPrecision

from nemo_vfm.core import progress
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.train.lightning.fit_settings import TrainerOptions
from nemo_vfm.train.lightning_fit import LightningFit
from tests.support import preloaded
from tests.support.combinations import cases
from tests.support.repository import ROOT

HERE = "tests.train.lightning.test_resume_decisions"


class Draws(Dataset[torch.Tensor]):
    """Its samples are drawn when they are read."""

    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return index / self.length + torch.rand(4)


class Net(LightningModule):
    """Learns slowly from samples that it draws, logs means, and steps a plateau by one of them."""

    def __init__(self, lr: float = 1e-3, batch_size: int = 2) -> None:
        super().__init__()
        self.lr, self.batch_size = lr, batch_size
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = (self.net(batch) - batch.mean(1, keepdim=True)).square().mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True, batch_size=len(batch))
        if self.trainer.fit_loop.batch_idx == 0:
            self.log("first", loss, on_step=False, on_epoch=True, reduce_fx="max", batch_size=len(batch))
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", (self.net(batch) + torch.rand(1)).square().mean(), on_step=True, on_epoch=True)

    def on_train_batch_end(self, *_: Any) -> None:
        self.log("drawn", torch.rand(1), batch_size=1)  # a hook that draws, behind the step

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)

    def train_dataloader(self) -> Any:
        return DataLoader(Draws(), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(Draws(), batch_size=4)


class Plateau(Net):
    """Halves its rate wherever an epoch's mean is not a tenth of what it was."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "train_loss_epoch"}}


class PlateauByStep(Net):
    """The same after every second step, by what a validation said last."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0)
        config = {"scheduler": plateau, "monitor": "val_loss", "interval": "step", "frequency": 2, "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": config}


class Measured(Net):
    """Metrics of one epoch and over all epochs, some logged, some asked by hand, and reset where templates do it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.best, self.range = MeanMetric(), MaxMetric(), MinMaxMetric(MeanMetric())
        self.both = MetricCollection([BinaryPrecision(), BinaryF1Score()])
        self.area, self.tracker = BinaryAUROC(), MetricTracker(MeanMetric(), maximize=False)

    def on_train_start(self) -> None:
        self.best.reset()

    def on_train_epoch_start(self) -> None:
        self.tracker.increment()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        guess, target = batch[:, 0].sigmoid(), (batch[:, 1] > 0.5).int()
        self.mean(loss), self.range.update(loss), self.tracker.update(loss)
        self.both.update(guess, target), self.area.update(guess, target)
        self.log("mean", self.mean, on_step=True, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.best(self.trainer.callback_metrics["train_loss_epoch"])
        self.log_dict({"best": self.best.compute(), "area": self.area.compute(), "tracked": self.tracker.best_metric()})
        self.log_dict({**self.both.compute(), **{f"range_{k}": v for k, v in self.range.compute().items()}})
        self.both.reset(), self.area.reset()


class Adversaries(Net):
    """Two optimizers, of which one steps with every second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = torch.zeros(())
        for number, optimizer in enumerate(self.optimizers()):
            if batch_idx % 2 < 2 - number:
                optimizer.zero_grad()
                loss = super().training_step(batch, batch_idx) + self.other(batch).square().mean()
                self.manual_backward(loss)
                optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net.parameters(), lr=0.01), torch.optim.Adam(self.other.parameters(), lr=0.01)]


class ByItself(Net):
    """Reads its batches itself, two in each step."""

    def training_step(self, dataloader_iter: Iterator[Any]) -> torch.Tensor:
        batch = torch.cat([next(dataloader_iter)[0] for _ in range(2)])
        return super().training_step(batch, 0)


class Counted(IterableDataset[torch.Tensor]):
    """A stream without a length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((4,), float(number)) + torch.rand(4) for number in range(12))


class Streamed(Net):
    def train_dataloader(self) -> Any:
        return DataLoader(Counted(), batch_size=2)


class Stateful:
    """A loader that knows its place, and whose epochs differ; with or without a length."""

    def __init__(self) -> None:
        self.epoch = self.number = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.number < 6:
            self.number += 1
            yield torch.full((2, 4), self.epoch + self.number / 7) + torch.rand(2, 4)
        self.epoch, self.number = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Sized(Stateful):
    def __len__(self) -> int:
        return 6


class Pairs(Net):
    """Reads loaders of two kinds side by side; the shorter one begins again within an epoch."""

    def __init__(self, loader: Callable[[], Stateful]) -> None:
        super().__init__()
        self.loader = loader()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return super().training_step(torch.cat(batch), batch_idx)

    def train_dataloader(self) -> Any:
        return CombinedLoader([self.loader, DataLoader(Draws(8), batch_size=2, shuffle=True)], "max_size_cycle")


class StatefulAlone(Net):
    def train_dataloader(self) -> Any:
        return Stateful()


class Generators(Net):
    """Shuffles by generators of its own, which live as long as the run, and validates on what it draws for that."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (torch.Generator().manual_seed(seed) for seed in (5, 6, 7))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return super().training_step(torch.cat(batch), batch_idx)

    def train_dataloader(self) -> Any:
        sampler = RandomSampler(Draws(), generator=self.two)
        return [DataLoader(Draws(), batch_size=2, shuffle=True, generator=self.one),
                DataLoader(Draws(), batch_size=2, sampler=sampler)]  # fmt: skip

    def val_dataloader(self) -> Any:
        return DataLoader(torch.rand(8, 4), batch_size=4, shuffle=True, generator=self.three)


class OfOtherEpochs(Net):
    """Its loaders are made anew every second epoch, of data that is drawn then."""

    def train_dataloader(self) -> Any:
        return DataLoader(torch.rand(12, 4), batch_size=2, shuffle=True)


class Numbers(Dataset[torch.Tensor]):
    """Draws from generators of numpy's and Python's."""

    def __init__(self) -> None:
        self.new, self.old, self.plain = np.random.default_rng(1), np.random.RandomState(2), random.Random(3)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index / 12, self.new.random(), self.old.random(), self.plain.random()]).float()


class OfNumbers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = Numbers()

    def train_dataloader(self) -> Any:
        return DataLoader(self.numbers, batch_size=2, shuffle=True)


class Workers(Net):
    """Reads by a process that lives as long as the run."""

    def train_dataloader(self) -> Any:
        return DataLoader(Draws(), batch_size=2, shuffle=True, num_workers=1, persistent_workers=True)


class Kept(Callback):
    """Keeps copies of the run folder, each as SIGKILL would leave it, and notes the batches of this process."""

    def __init__(self, at: dict[int, Path], taken: list[int]) -> None:
        self.at, self.taken = at, taken

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.taken.append(trainer.fit_loop.total_batch_idx + 1)
        if self.taken[-1] in self.at:
            shutil.copytree(trainer.default_root_dir, self.at[self.taken[-1]])


class Killed(Callback):
    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.batch:
            os.kill(os.getpid(), signal.SIGKILL)


stop_early = partial(EarlyStopping, "train_loss_epoch", patience=0, min_delta=0.005)
find_rate = partial(LearningRateFinder, min_lr=1e-4, max_lr=0.3, num_training_steps=24, early_stop_threshold=None)
find_size = partial(BatchSizeFinder, max_trials=2, steps_per_trial=2)
#: What runs, with what: module, options of the Trainer, callbacks.
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "a plateau by an epoch's mean": (Plateau, {}, {}),
    "a plateau by steps": (PlateauByStep, {"val_check_interval": 3}, {}),
    "the end by an epoch's mean": (partial(Net, lr=1e-4), {"max_epochs": 9, "max_steps": 50}, {"stop": stop_early}),
    "metrics over epochs": (Measured, {"check_val_every_n_epoch": 2}, {}),
    "two optimizers": (Adversaries, {"log_every_n_steps": 2, "max_steps": 27}, {}),
    "two batches a step": (Plateau, {"accumulate_grad_batches": 2, "val_check_interval": 2}, {}),
    "four batches a step": (Net, {"accumulate_grad_batches": 4, "num_sanity_val_steps": 0}, {}),
    "a rate that was searched": (Plateau, {"max_steps": 18}, {"find": find_rate}),
    "a size that was searched": (partial(Net, batch_size=1), {}, {"find": find_size}),
    "a module that reads by itself": (ByItself, {}, {}),
    "a stream": (Streamed, {}, {}),
    "a loader with a state": (StatefulAlone, {}, {}),
    "a loader with a state and one without": (partial(Pairs, Stateful), {}, {}),
    "a loader with a state, a length, and one without": (partial(Pairs, Sized), {"val_check_interval": 2}, {}),
    "generators": (Generators, {"limit_val_batches": 1}, {}),
    "generators of a dataset": (OfNumbers, {}, {}),
    "a worker": (Workers, {}, {}),
    "loaders that are made again": (OfOtherEpochs, {"reload_dataloaders_every_n_epochs": 2}, {}),
}

#: The others are variants of these.
QUICK = {
    "a plateau by an epoch's mean", "the end by an epoch's mean", "metrics over epochs", "two optimizers",
    "two batches a step", "a rate that was searched", "a size that was searched", "a module that reads by itself",
    "a stream", "a loader with a state", "a loader with a state and one without", "generators",
}  # fmt: skip


def job(case: str, **callbacks: Any) -> LightningFit:
    """Three epochs of six batches, with a checkpoint every second step."""
    module, options, more = CASES[case]
    trainer = TrainerOptions(**{"max_epochs": 3, "log_every_n_steps": 1, **options})
    every_steps = 1 if "accumulate_grad_batches" in options else 2
    return LightningFit(module=module, accelerator="cpu", every_steps=every_steps, trainer=trainer,
                        callbacks={**more, "lr": LearningRateMonitor, **callbacks})  # fmt: skip


def lines(folder: Path) -> list[str]:
    """All that was measured, in order, without the clock."""
    read = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [json.dumps({k: v for k, v in line.items() if k != "time_s"}) for line in read]


def newest(folder: Path) -> dict[str, Any]:
    """All of its checkpoint but the loops, which count what a process has begun."""
    found: dict[str, Any] = torch.load(max((folder / "checkpoints").glob("step-*.ckpt")), weights_only=True)
    return {name: value for name, value in found.items() if name != "loops"}


def require_same(one: Any, two: Any, where: str = "") -> None:
    """The same bits, at every depth."""
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for name in one:
            require_same(one[name], two[name], f"{where}/{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(two), where
        for number, (first, second) in enumerate(zip(one, two, strict=True)):
            require_same(first, second, f"{where}/{number}")
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True, msg=where)
    else:
        assert one == two or one != one, f"{where}: {one} is not {two}"


def require_resumed(case: str, folder: Path, whole: Path, batches: list[int], killed_at: int) -> None:
    """It takes up in the middle, at a batch that a checkpoint says, and ends as the whole run."""
    taken = list[int]()
    job(case, kept=partial(Kept, {}, taken)).run(Run(folder, seed=3, resume=True))
    assert taken == batches[len(batches) - len(taken) :] and 1 < taken[0] <= killed_at + 1
    require_same(newest(folder), newest(whole))
    assert lines(folder) == lines(whole)


def rates(folder: Path) -> list[float]:
    return [value for line in lines(folder) for name, value in json.loads(line).items() if name.startswith("lr-")]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow, id=case) for case in CASES]
)
def test_a_run_that_is_killed_anywhere_ends_as_if_nothing_had_happened(case: str, tmp_path: Path) -> None:
    copies = {batch: tmp_path / f"killed-{batch}" for batch in ((5, 7, 10) if case in QUICK else (10,))}
    batches = list[int]()
    job(case, kept=partial(Kept, copies, batches)).run(Run(tmp_path / "whole", seed=3))
    assert (10 in batches) == copies[10].is_dir(), "the last is looked at wherever there is one"
    for batch, folder in copies.items():
        if folder.is_dir():
            require_resumed(case, folder, tmp_path / "whole", batches, batch)


@pytest.mark.slow  # processes that die
@pytest.mark.parametrize(("case", "batch"), cases(
    [("a plateau by an epoch's mean", 8), ("metrics over epochs", 11), ("the end by an epoch's mean", 9),
     ("a rate that was searched", 4), ("two optimizers", 15), ("two batches a step", 10)],
    [("metrics over epochs", 11), ("a rate that was searched", 4)],  # copies of the folder stand for the others
))  # fmt: skip
def test_a_process_that_is_killed_leaves_what_the_next_one_needs(case: str, batch: int, tmp_path: Path) -> None:
    batches = list[int]()
    job(case, kept=partial(Kept, {}, batches)).run(Run(tmp_path / "whole", seed=3))
    code = f"""
from functools import partial
from pathlib import Path
from nemo_vfm.core.types.job import Run
from {HERE} import Killed, job
job({case!r}, killed=partial(Killed, {batch})).run(Run(Path({str(tmp_path / "run")!r}), seed=3))
"""
    killed = preloaded.run([sys.executable, "-c", code])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    require_resumed(case, tmp_path / "run", tmp_path / "whole", batches, batch)


def test_a_plateau_lowers_the_rate_and_an_epochs_mean_ends_the_run_where_these_cases_are_killed(tmp_path: Path) -> None:
    job("a plateau by an epoch's mean").run(Run(tmp_path / "plateau", seed=3))
    assert len(set(rates(tmp_path / "plateau"))) == 2
    outcome = job("the end by an epoch's mean").run(Run(tmp_path / "stop", seed=3))
    assert 12 <= outcome.figures["steps"] < 50


def test_a_stream_that_can_be_read_once_gives_all_its_batches(tmp_path: Path) -> None:
    batches = [torch.full((2, 4), float(number)) for number in range(20)]

    class Once(Net):
        def train_dataloader(self) -> Any:
            return iter(batches)

    trainer = TrainerOptions(max_epochs=1, limit_val_batches=0)
    outcome = LightningFit(module=Once, accelerator="cpu", trainer=trainer).run(Run(tmp_path))
    assert outcome.figures["steps"] == 20


def test_a_stream_that_can_be_read_once_in_each_process_is_resumed_in_its_only_epoch(tmp_path: Path) -> None:
    class Once(Net):
        def train_dataloader(self) -> Any:
            return (torch.full((2, 4), float(number)) for number in range(20))

    def train(folder: Path, taken: list[int], **kept: Path) -> None:
        copies = {int(name[1:]): path for name, path in kept.items()}
        callbacks = {"kept": partial(Kept, copies, taken)}
        LightningFit(module=Once, accelerator="cpu", trainer=TrainerOptions(max_epochs=1), every_steps=3,
                     callbacks=callbacks).run(Run(folder, seed=3))  # fmt: skip

    batches, taken = list[int](), list[int]()
    train(tmp_path / "whole", batches, b8=tmp_path / "killed")
    train(tmp_path / "killed", taken)
    assert batches == [*range(1, 21)] and taken == [*range(7, 21)]
    require_same(newest(tmp_path / "killed"), newest(tmp_path / "whole"))


@pytest.mark.parametrize("case", ["two optimizers", "two batches a step", "a plateau by steps"])
def test_progress_lines_and_checkpoints_count_the_same_steps(case: str, tmp_path: Path, capsys: Any) -> None:
    outcome = job(case).run(Run(tmp_path, seed=3))
    count = {"two optimizers": 18, "two batches a step": 9, "a plateau by steps": 18}[case]
    known = progress.current()
    assert (known["step"], known["total_steps"], outcome.figures["steps"]) == (count, count, count)
    assert f"{count}/{count}" in capsys.readouterr().err
    read = [json.loads(line) for line in lines(tmp_path)]
    assert [line["step"] for line in read if "loss" in line] == [*range(1, count + 1)]
    once = [(line["step"], name) for line in read for name in line if name not in ("step", "epoch", "val_loss_step")]
    assert len(once) == len(set(once)), "a line of another step stands where this one's should"
    assert max(line["step"] for line in read) == count
    assert f"step-{count:08d}.ckpt" in {path.name for path in (tmp_path / "checkpoints").iterdir()}


def test_the_loss_of_a_step_is_the_mean_over_its_batches(tmp_path: Path) -> None:
    job("two batches a step").run(Run(tmp_path, seed=3))
    read = [json.loads(line) for line in lines(tmp_path)]
    losses = {line["step"]: line["loss"] for line in read if "loss" in line}
    means = [line["train_loss_epoch"] for line in read if "train_loss_epoch" in line]
    for epoch, mean in enumerate(means):
        assert sum(losses[3 * epoch + step] for step in (1, 2, 3)) / 3 == pytest.approx(mean, rel=1e-5)


def test_what_is_logged_before_the_training_stands_once_in_its_first_step(tmp_path: Path) -> None:
    class Early(Net):
        def on_fit_start(self) -> None:
            self.logger.log_metrics({"parameters": 49.0})

        def on_train_start(self) -> None:
            self.log("started", 1.0)

    def train(**more: Any) -> None:
        LightningFit(module=Early, accelerator="cpu", every_steps=2, trainer=TrainerOptions(max_epochs=2),
                     **more).run(Run(tmp_path, seed=3))  # fmt: skip

    train(callbacks={"kept": partial(Kept, {8: tmp_path / "killed"}, [])})
    shutil.copytree(tmp_path / "killed", tmp_path, dirs_exist_ok=True)
    for newer in (tmp_path / "checkpoints").glob("step-*12.ckpt"):
        newer.unlink()
    train()
    read = [json.loads(line) for line in lines(tmp_path)]
    assert [line["step"] for line in read if "parameters" in line] == [1]


def test_a_resume_removes_what_a_killed_search_put_aside(tmp_path: Path) -> None:
    for name in (".lr_find_1.ckpt", ".scale_batch_size_1.ckpt"):
        (tmp_path / name).write_bytes(b"half")
    job("a size that was searched").run(Run(tmp_path, seed=3))
    assert not [*tmp_path.glob(".*.ckpt")]


@pytest.mark.cluster
def test_each_of_two_ranks_goes_on_with_its_own_metrics_means_and_place(tmp_path: Path) -> None:
    def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
        words = [str(ROOT / "recipes/lightning/own_module.yaml"), "--trust", "tests", f"run_dir={folder}", "devices=2",
                 f"module._target_={HERE}.Measured", "accelerator=cpu", "data=null", "trainer.max_epochs=3",
                 "trainer.log_every_n_steps=1", "every_steps=2", *more]  # fmt: skip
        command = [sys.executable, "-m", "nemo_vfm", "run", *words]
        return preloaded.run(command, timeout=400)

    assert run(tmp_path / "whole").returncode == 0
    killed = run(tmp_path / "run", f"callbacks.end={{_target_: {HERE}.Killed, batch: 6}}")
    assert killed.returncode != 0 and newest(tmp_path / "run")["global_step"] == 4
    resumed = run(tmp_path / "run", "--allow", "callbacks.end._target_", "--allow", "callbacks.end.batch")
    assert resumed.returncode == 0 and "resuming from" in resumed.stderr, resumed.stderr
    ranks = newest(tmp_path / "whole")["nemo_vfm"]
    assert len(ranks) == 2 and ranks[0]["metrics"]["best"] != ranks[1]["metrics"]["best"]
    require_same(newest(tmp_path / "run"), newest(tmp_path / "whole"))
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


def test_a_checkpoint_without_what_a_resume_needs_is_refused(tmp_path: Path) -> None:
    job("a stream").run(Run(tmp_path, seed=3))
    (path,) = (tmp_path / "checkpoints").glob("step-*16.ckpt")
    (tmp_path / "checkpoints/step-00000018.ckpt").unlink()
    torch.save(torch.load(path, weights_only=True) | {"callbacks": {}, "nemo_vfm": []}, path)
    with pytest.raises(UserError, match="was not written by this version of LightningFit"):
        job("a stream").run(Run(tmp_path, seed=3, resume=True))
