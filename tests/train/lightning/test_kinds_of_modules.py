"""Tests on many kinds of Lightning modules that a run gives plain Lightning's numbers, and its own after kills."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BackboneFinetuning, GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset

from nemo_vfm.core.errors import Preempted
from nemo_vfm.core.preemption import listen_for_signals
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.job import Run
from nemo_vfm.train.lightning.fit_settings import TrainerOptions
from nemo_vfm.train.lightning.resume import seed_all
from nemo_vfm.train.lightning_fit import LightningFit
from tests.support.combinations import cases
from tests.support.faulty_disk import in_a_copy
from tests.train.lightning.test_resume_decisions import require_same

SEED, BATCHES, EPOCHS = 3, 6, 3
KILLS = {"begin": BATCHES + 1, "middle": BATCHES + 4, "validation": BATCHES + 3}  # batches of the run


class Rows(Dataset[Tensor]):
    """Twelve rows; some are drawn as they are read."""

    def __init__(self, draws: bool) -> None:
        self.draws = draws

    def __len__(self) -> int:
        return 2 * BATCHES

    def __getitem__(self, index: int) -> Tensor:
        return torch.arange(4.0) / 4 + index / 12 + (torch.rand(4) if self.draws else 0)


class Stream(IterableDataset[Tensor]):
    """The same, without a length."""

    def __init__(self, draws: bool) -> None:
        self.rows, self.epoch = Rows(draws), 0

    def __iter__(self) -> Iterator[Tensor]:
        scale = 1 + self.epoch
        return (scale * self.rows[index] for index in range(len(self.rows)))


class Data(LightningDataModule):
    """Loaders of a function; with draws, the rows and their order are drawn."""

    def __init__(self, make: Callable[[bool], Any], draws: bool) -> None:
        super().__init__()
        self.make, self.draws = make, draws

    def train_dataloader(self) -> Any:
        return self.make(self.draws)

    def val_dataloader(self) -> Any:
        return DataLoader(Rows(False), batch_size=4)


def rows(draws: bool) -> Any:
    return DataLoader(Rows(draws), batch_size=2, shuffle=draws)


def by_name(draws: bool) -> Any:
    return {"a": rows(draws), "b": DataLoader(Rows(draws), batch_size=4, shuffle=draws)}


def shortest(draws: bool) -> Any:
    longer = DataLoader(Rows(draws), batch_size=1, shuffle=draws)
    return CombinedLoader({"a": longer, "b": rows(draws)}, "min_size")


def stream(draws: bool) -> Any:
    return DataLoader(Stream(draws), batch_size=2)


def told_the_epoch(draws: bool) -> Any:
    """What Lightning makes of a loader that shuffles, where there are several ranks."""
    sampler: Any = DistributedSampler(Rows(draws), num_replicas=1, rank=0, shuffle=draws)
    return DataLoader(Rows(draws), batch_size=2, sampler=sampler)


def made_anew(draws: bool) -> Any:
    """For `reload_dataloaders_every_n_epochs`."""
    order = torch.randperm(2 * BATCHES).tolist() if draws else range(2 * BATCHES)
    return DataLoader(Subset(Rows(draws), order), batch_size=2)


class Net(LightningModule):
    """The plainest kind; it logs a loss of training and one of validation."""

    net: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)

    def loss(self, batch: Any) -> Tensor:
        x = torch.cat([*batch.values()]) if isinstance(batch, Mapping) else batch
        return nn.functional.mse_loss(self.net(x), x.mean(1, keepdim=True))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class OneCycle(Net):
    """A schedule by steps, of a length that the Trainer tells."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-2, momentum=0.9)
        schedule = OneCycleLR(optimizer, 0.1, total_steps=int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class EveryFourth(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        config = {"scheduler": ExponentialLR(optimizer, 0.5), "interval": "step", "frequency": 4}
        return {"optimizer": optimizer, "lr_scheduler": config}


class PlateauBySteps(Net):
    """Halves its rate wherever two steps did not help much."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        config = {"scheduler": plateau, "monitor": "train_loss", "interval": "step", "frequency": 2}
        return {"optimizer": optimizer, "lr_scheduler": config}


class WarmUp(Net):
    """Its `optimizer_step` sets the rate by the step's number."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * min(1.0, (self.trainer.global_step + 1) / 10)
        optimizer.step(closure=closure)


class ManyCalls(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class ByHand(Net):
    """Two optimizers and their schedules, all moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(4, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        schedules: Any = self.lr_schedulers()
        for name, net, optimizer in zip("ab", (self.net, self.other), optimizers, strict=True):
            self.toggle_optimizer(optimizer)
            loss = (net(batch) - batch.mean(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
            self.log(f"{name}_loss", loss)
        for schedule in schedules:
            schedule.step()

    def configure_optimizers(self) -> Any:
        optimizers = [torch.optim.Adam(net.parameters(), lr=1e-2) for net in (self.net, self.other)]
        return optimizers, [ExponentialLR(one, 0.9) for one in optimizers]


class AccumulatesByHand(Net):
    """One step for three batches."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        self.manual_backward(self.loss(batch) / 3)
        if batch_idx % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


class Truncated(Net):
    """A recurrent network, of which one batch makes several steps."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.rnn = nn.LSTM(1, 3, batch_first=True)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        state: Any = None
        optimizer: Any = self.optimizers()
        for part in batch.unsqueeze(-1).tensor_split(2, dim=1):
            out, state = self.rnn(part, state)
            state = tuple(one.detach() for one in state)
            optimizer.zero_grad()
            self.manual_backward((out.mean(-1, keepdim=True) - part).square().mean())
            optimizer.step()


class InnerLoop(Net):
    """Trains a copy of itself inside its step."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        copy = deepcopy(self.net)
        inner = torch.optim.SGD(copy.parameters(), lr=0.1)
        copy(batch).square().mean().backward()
        inner.step()
        return nn.functional.mse_loss(self.net(batch), copy(batch).detach()) + self.loss(batch)


class Averaged(Net):
    def __init__(self) -> None:
        super().__init__()
        self.average = AveragedModel(self.net)

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.average.update_parameters(self.net)


class LateLayers(Net):
    """Layers that are made when the training is set up."""

    def setup(self, stage: str) -> None:
        self.first = nn.Linear(4, 4)

    def configure_model(self) -> None:
        if not hasattr(self, "second"):
            self.second = nn.Linear(4, 4)

    def loss(self, batch: Tensor) -> Tensor:
        return super().loss(self.second(self.first(batch)))


class Normalized(Net):
    """Buffers that change as it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(4), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 1)))


class Draws(Net):
    """Draws in its step and in the hooks around a step."""

    def loss(self, batch: Tensor) -> Tensor:
        return super().loss(nn.functional.dropout(batch) + torch.randn(1))

    def on_after_backward(self) -> None:
        torch.rand(1)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log("gradient", sum(one.grad.norm() for one in self.parameters() if one.grad is not None) + torch.rand(1))


class DrawsAround(Net):
    """Draws in the hooks before and behind steps, so between a callback's hook and the next batch."""

    def on_train_start(self) -> None:
        torch.rand(1)

    on_train_epoch_start = on_train_epoch_end = on_validation_end = on_train_start

    def on_train_batch_end(self, *_: Any) -> None:
        torch.rand(1)


class LeavesSomeOut(Net):
    """No loss, so no step, for every third batch."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor | None:
        return None if batch_idx % 3 == 1 else super().training_step(batch, batch_idx)


class StopsItself(Net):
    def on_train_batch_end(self, *_: Any) -> None:
        if self.trainer.global_step == 2 * BATCHES + 2:
            self.trainer.should_stop = True


class EndsEpochsEarly(Net):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == BATCHES - 1 else None


class Thaws(Net):
    """A layer learns from the second epoch on."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def loss(self, batch: Any) -> Tensor:
        return super().loss(self.frozen(batch))

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.frozen.requires_grad_(True)


class SetUpByEpoch(Net):
    """Its loss has a weight of the epoch, made where the epoch starts."""

    def on_train_epoch_start(self) -> None:
        self.scale = 1.0 + self.current_epoch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.scale * self.loss(batch)


class CopiesByEpoch(Net):
    """Where an epoch starts it copies its weights to a second net, counts, logs, and sets its rate."""

    def __init__(self) -> None:
        super().__init__()
        self.old, self.count = nn.Linear(4, 1).requires_grad_(False), 0

    def on_train_epoch_start(self) -> None:
        self.old.load_state_dict(self.net.state_dict())
        self.count += 1
        self.log("start", float(self.count))
        for logger in self.loggers:
            logger.log_metrics({"epoch_started": float(self.count)})
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = 0.01 / self.count

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("count", float(self.count))
        return self.loss(batch) + nn.functional.mse_loss(self.net(batch), self.old(batch))

    def on_train_batch_end(self, *_: Any) -> None:
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] *= 0.9

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["count"] = self.count

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.count = checkpoint.pop("count")


class TellsTheEpoch(Net):
    """Tells a stream the epoch, by which its rows differ."""

    def on_train_epoch_start(self) -> None:
        loader: Any = self.trainer.train_dataloader
        loader.dataset.epoch = self.current_epoch


class Backbone(Net):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def loss(self, batch: Any) -> Tensor:
        return super().loss(self.backbone(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net.parameters(), lr=1e-2)


class ForgetfulBuffer(Net):
    """A running mean that `state_dict` leaves out."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * batch.mean(0)
        return self.loss(batch - self.mean)


class KeepsMore(Net):
    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def on_train_batch_end(self, *_: Any) -> None:
        self.total += float(sum(one.detach().sum() for one in self.parameters()))
        self.log("total", self.total)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["total"] = self.total

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.total = checkpoint["total"]


class Counts(Callback):
    def __init__(self) -> None:
        self.total = 0.0

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.total += float(sum(one.detach().sum() for one in pl_module.parameters()))
        pl_module.log("counted", self.total)

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.total = state_dict["total"]


@dataclass(frozen=True)
class Kind:
    module: Callable[[], LightningModule] = Net
    loaders: Callable[[bool], Any] = rows
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: dict[str, Callable[[], Callback]] = field(default_factory=dict)
    draws: bool = False  #: in its step, which plain Lightning does not seed

    def options(self) -> dict[str, Any]:
        """Of the Trainer, ours and Lightning's."""
        every = {"val_check_interval": 3, "check_val_every_n_epoch": 1}
        return {"max_epochs": EPOCHS, "log_every_n_steps": 1, **every, **self.trainer}


KINDS = {
    "plain": Kind(),
    "no validation": Kind(trainer={"limit_val_batches": 0}),
    "validation every second epoch": Kind(trainer={"val_check_interval": None, "check_val_every_n_epoch": 2}),
    "validation across epochs": Kind(trainer={"val_check_interval": 4, "check_val_every_n_epoch": None}),
    "one cycle": Kind(OneCycle),
    "a schedule of every fourth step": Kind(EveryFourth),
    "a plateau by steps": Kind(PlateauBySteps),
    "its own optimizer step": Kind(WarmUp),
    "an optimizer of several calls": Kind(ManyCalls),
    "two optimizers by hand": Kind(ByHand),
    "several steps for a batch": Kind(Truncated),
    "an inner loop": Kind(InnerLoop),
    "averaged weights": Kind(Averaged),
    "late layers": Kind(LateLayers),
    "normalized": Kind(Normalized),
    "clipped": Kind(trainer={"gradient_clip_val": 0.1}),
    "half precision": Kind(trainer={"precision": "bf16-mixed"}),
    "random": Kind(Draws, draws=True),
    "random around": Kind(DrawsAround),
    "no loss for some": Kind(LeavesSomeOut),
    "stops itself": Kind(StopsItself),
    "saves more": Kind(KeepsMore),
    "a callback with a state": Kind(callbacks={"counts": Counts}),
    "loaders by name": Kind(loaders=by_name),
    "the shorter of two loaders": Kind(loaders=shortest),
    "a stream": Kind(loaders=stream),
    "a stream that is told the epoch": Kind(TellsTheEpoch, stream),
    "a sampler that is told the epoch": Kind(loaders=told_the_epoch),
    "loaders made anew": Kind(loaders=made_anew, trainer={"reload_dataloaders_every_n_epochs": 1}),
    "accumulated by hand": Kind(AccumulatesByHand),
    "accumulated by a schedule": Kind(
        callbacks={"schedule": partial(GradientAccumulationScheduler, {0: 1, 1: 2})},
    ),
    "averaged by a callback": Kind(
        callbacks={"swa": partial(StochasticWeightAveraging, 1e-3, swa_epoch_start=1, annealing_epochs=3)},
        trainer={"max_epochs": 4},
    ),
    "epochs that end early": Kind(EndsEpochsEarly, trainer={"limit_val_batches": 0}),
    "thaws": Kind(Thaws),
    "set up by epoch": Kind(SetUpByEpoch),
    "copies by epoch": Kind(CopiesByEpoch),
    "thawed by a callback": Kind(Backbone, callbacks={"thaw": partial(BackboneFinetuning, 1)}),
    "a forgetful buffer": Kind(ForgetfulBuffer),
    "an end by steps alone": Kind(trainer={"max_epochs": -1, "max_steps": 16}),
}  # fmt: skip


class Die(Callback):
    """Takes the process away where so many batches of the run are done, or validated."""

    def __init__(self, place: str, by: signal.Signals = signal.SIGKILL) -> None:
        self.place, self.by = place, by

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._at(trainer, "begin", "middle")

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        self._at(trainer, "validation")

    def _at(self, trainer: Trainer, *places: str) -> None:
        if self.place in places and trainer.fit_loop.total_batch_idx + 1 == KILLS[self.place]:
            os.kill(os.getpid(), self.by)


def train(kind: Kind, folder: Path, *, draws: bool, killed_at: str = "") -> dict[str, Any]:
    """Our run, to its end; it goes on where the folder has a checkpoint. What its last checkpoint holds."""
    callbacks: dict[str, Any] = kind.callbacks | ({"end": partial(Die, killed_at)} if killed_at else {})
    LightningFit(
        module=kind.module, data=partial(Data, kind.loaders, draws), trainer=TrainerOptions(**kind.options()),
        accelerator="cpu", every_steps=4, callbacks=callbacks,
    ).run(Run(folder, seed=SEED, resume=True))  # fmt: skip
    return read(last(folder))


def last(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-*.ckpt"))


def train_and_die(kind: Kind, folder: Path, place: str) -> None:
    train(kind, folder, draws=True, killed_at=place)


def read(path: Path) -> dict[str, Any]:
    """The learned state."""
    saved = torch.load(path, weights_only=True)
    return {name: saved[name] for name in ("state_dict", "optimizer_states", "lr_schedulers", "global_step")}


def lines(folder: Path) -> list[dict[str, float]]:
    """Of metrics.jsonl, in some order, without the clock."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return sorted(({k: v for k, v in line.items() if k != "time_s"} for line in found), key=str)


class Numbers(DummyLogger):
    """What plain Lightning logs, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[float]] = {}

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            self.found.setdefault(name, []).append(float(value))


class SaveEachEpoch(Callback):
    """At the place where a run of ours saves its last checkpoint."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(Path(trainer.default_root_dir) / "plain.ckpt")


def train_plainly(kind: Kind, folder: Path) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Lightning's Trainer alone, from the same first weights: the learned state, and what was logged."""
    seed_all(derive(SEED, "initial weights"))
    numbers = Numbers()
    trainer = Trainer(
        **kind.options(), accelerator="cpu", devices=1, logger=numbers, default_root_dir=folder,
        callbacks=[*(make() for make in kind.callbacks.values()), SaveEachEpoch()],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(kind.module(), Data(kind.loaders, False))
    return read(folder / "plain.ckpt"), numbers.found


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.draws])
def test_a_module_that_draws_nothing_gives_the_numbers_of_lightning_alone(tmp_path: Path, name: str) -> None:
    state = train(KINDS[name], tmp_path / "run", draws=False)
    plain, logged = train_plainly(KINDS[name], tmp_path)
    require_same(state, plain)
    found = lines(tmp_path / "run")
    for key in logged.keys() - {"epoch"}:
        assert sorted(line[key] for line in found if key in line) == sorted(logged[key]), key


#: Each kind once, and at every place those that do most between batches.
OFTEN = [(name, "middle") for name in KINDS] + [
    (name, place) for name in ("plain", "random around", "copies by epoch", "a plateau by steps")
    for place in ("begin", "validation")
]  # fmt: skip


def places(kind: Kind) -> list[str]:
    validates = kind.options()["val_check_interval"] == 3 and kind.options().get("limit_val_batches") != 0
    return [*KILLS] if validates else ["begin", "middle"]


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], Any]]:
    """The end and the lines of a kind's run that nobody killed."""

    @cache
    def whole(name: str) -> tuple[dict[str, Any], Any]:
        folder = tmp_path_factory.mktemp("whole")
        return train(KINDS[name], folder, draws=True), lines(folder)

    return whole


@pytest.mark.slow  # killed and resumed
@pytest.mark.parametrize(("name", "place"), cases(
    [(name, place) for name, kind in KINDS.items() for place in places(kind)], OFTEN
))  # fmt: skip
def test_killed_anywhere_in_an_epoch_it_resumes_to_the_same_weights_and_lines(
    tmp_path: Path, wholes: Callable[[str], tuple[dict[str, Any], Any]], name: str, place: str
) -> None:
    state, said = wholes(name)
    assert in_a_copy(partial(train_and_die, KINDS[name], tmp_path, place)) == -signal.SIGKILL
    assert any((tmp_path / "checkpoints").iterdir()), "it began anew"
    require_same(train(KINDS[name], tmp_path, draws=True), state)
    assert lines(tmp_path) == said


def test_a_stop_waits_for_the_step_in_which_gathered_gradients_end(tmp_path: Path) -> None:
    kind = KINDS["accumulated by hand"]
    whole = train(kind, tmp_path / "whole", draws=True)
    ended = replace(kind, callbacks={"end": partial(Die, "begin", signal.SIGTERM)})
    with listen_for_signals(), pytest.raises(Preempted):
        train(ended, tmp_path / "run", draws=True)
    assert last(tmp_path / "run").name == "step-00000009.ckpt"
    require_same(train(kind, tmp_path / "run", draws=True), whole)
