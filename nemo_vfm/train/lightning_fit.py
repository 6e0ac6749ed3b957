# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs any Lightning project in a run folder: it can be killed and resumed, and its curves are in the report."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.optional import needs_gpu
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.loader.lightning_batches import LightningData
from nemo_vfm.train.callbacks.callback import LightningCallback
from nemo_vfm.train.loggers import LightningLogger, LoggerSource

Precision = Literal["32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true", "transformer-engine"]


@runtime_checkable
class LightningModule(Protocol):
    """A `lightning.pytorch.LightningModule`, of which it has these methods. It is imported when a run begins."""

    def configure_optimizers(self) -> Json:
        """Of the module's own choice."""
        ...

    def lr_schedulers(self) -> Json:
        """Those of the Trainer."""
        ...

    def manual_backward(self, loss: Tensor) -> None:
        """As the strategy wants it."""
        ...


@runtime_checkable
class LightningStrategy(Protocol):
    """A `lightning.pytorch.strategies.Strategy`."""

    def setup_environment(self) -> None:
        """Meet the other ranks."""
        ...

    def model_to_device(self) -> None:
        """Place the module."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """Arguments of Lightning's Trainer, under its own names; None leaves one as Lightning has it.

    Args:
        max_epochs: length of the whole run; -1 where max_steps ends it.
        min_epochs: for which it goes on, whatever a callback wishes.
        max_steps: optimizer steps after which it ends.
        min_steps: for which it goes on, whatever a callback wishes.
        limit_train_batches: of an epoch: so many, or this share of them.
        limit_val_batches: of a validation: so many, or this share of them.
        overfit_batches: train and validate on so many, or this share.
        val_check_interval: validate after so many batches, or this share of an epoch.
        check_val_every_n_epoch: validate once in so many epochs; None counts batches over epochs.
        num_sanity_val_steps: batches that are validated before the training.
        log_every_n_steps: how often loggers get what the module logs.
        accumulate_grad_batches: batches for one optimizer step.
        gradient_clip_val: what gradients are clipped to.
        gradient_clip_algorithm: whether by their norm or value by value.
        precision: of the arithmetic, in Lightning's words.
        deterministic: whether torch must take deterministic algorithms, or warn.
        benchmark: let cuDNN try its algorithms.
        inference_mode: validate without what autograd needs.
        use_distributed_sampler: let Lightning give each rank its share of a loader.
        sync_batchnorm: share the statistics of batch norms among ranks.
        detect_anomaly: find the operation that gave a NaN.
        reload_dataloaders_every_n_epochs: ask for the loaders again.

    Raises:
        ValueError: a number that no training can have.
    """

    max_epochs: int
    min_epochs: int | None = None
    max_steps: int | None = None
    min_steps: int | None = None
    limit_train_batches: int | float | None = None
    limit_val_batches: int | float | None = None
    overfit_batches: int | float | None = None
    val_check_interval: int | float | None = None
    check_val_every_n_epoch: int | None = 1
    num_sanity_val_steps: int | None = None
    log_every_n_steps: int | None = None
    accumulate_grad_batches: int | None = None
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: Literal["norm", "value"] | None = None
    precision: Precision | None = None
    deterministic: bool | Literal["warn"] | None = None
    benchmark: bool | None = None
    inference_mode: bool | None = None
    use_distributed_sampler: bool | None = None
    sync_batchnorm: bool | None = None
    detect_anomaly: bool | None = None
    reload_dataloaders_every_n_epochs: int | None = None

    def __post_init__(self) -> None:
        require_between(-1, inf, max_epochs=self.max_epochs, max_steps=self.max_steps,
                        num_sanity_val_steps=self.num_sanity_val_steps)  # fmt: skip
        require_between(0, inf, min_epochs=self.min_epochs, min_steps=self.min_steps,
                        limit_train_batches=self.limit_train_batches, limit_val_batches=self.limit_val_batches,
                        overfit_batches=self.overfit_batches, val_check_interval=self.val_check_interval,
                        log_every_n_steps=self.log_every_n_steps, gradient_clip_val=self.gradient_clip_val,
                        reload_dataloaders_every_n_epochs=self.reload_dataloaders_every_n_epochs)  # fmt: skip
        require_between(1, inf, accumulate_grad_batches=self.accumulate_grad_batches,
                        check_val_every_n_epoch=self.check_val_every_n_epoch)  # fmt: skip

    def given(self) -> dict[str, Json]:
        """Those that the Trainer is called with."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {k: v for k, v in values.items() if v is not None or k == "check_val_every_n_epoch"}


@needs_gpu({"accelerator": "auto"})
@needs_gpu({"accelerator": "gpu"})
class LightningFit:
    """Trains a LightningModule of anybody's with Lightning's Trainer.

    Lightning writes its checkpoints as pickles. Only those of the run folder are read, and nothing in them but tensors
    and plain values.

    Args:
        module: builds the LightningModule; called once, with the initial weights a function of the run's seed.
        data: builds the LightningDataModule; None where the module has loaders of its own.
        trainer: arguments of the Trainer; devices, strategy, folders and checkpoints are said here.
        accelerator: what computes; auto takes a GPU where there is one.
        devices: how many of each machine; `nemo-vfm run` starts a process for each.
        num_nodes: how many machines.
        strategy: how devices share the work: a name that Lightning knows, or a component.
        callbacks: build callbacks of Lightning's, by name, in order.
        loggers: where metrics go besides metrics.jsonl, by name: ours, or Lightning's.
        every_steps: optimizer steps between checkpoints; there is always one at the end of an epoch.
        keep_last: how many of the newest stay on disk.
        on_nan: what becomes of a run whose loss is NaN or infinite in eight batches in a row: it ends as failed, or
            goes on. Either way it says since which step.
    """

    def __init__(
        self, *, module: Factory[[], LightningModule], data: Factory[[], LightningData] | None = None,
        trainer: TrainerOptions, accelerator: Literal["auto", "cpu", "gpu"] = "auto", devices: int = 1,
        num_nodes: int = 1, strategy: str | Factory[[], LightningStrategy] = "auto",
        callbacks: Mapping[str, Factory[[], LightningCallback]] | None = None,
        loggers: Mapping[str, LoggerSource | LightningLogger] | None = None, every_steps: int = 1000,
        keep_last: int = 2, on_nan: Literal["stop", "continue"] = "stop",
    ) -> None:  # fmt: skip
        if devices < 1 or num_nodes < 1 or every_steps < 1 or keep_last < 1:
            raise ValueError(f"devices ({devices}), num_nodes ({num_nodes}), every_steps ({every_steps}) and keep_last "
                             f"({keep_last}) must be at least 1")  # fmt: skip
        self.module, self.data, self.trainer, self.strategy = module, data, trainer, strategy
        self.accelerator, self.devices, self.num_nodes = accelerator, devices, num_nodes
        self.callbacks, self.loggers = dict(callbacks or {}), dict(loggers or {})
        self.every_steps, self.keep_last = every_steps, keep_last
        self.on_nan: Literal["stop", "continue"] = on_nan

    def num_ranks(self) -> int:
        """See `MultiRankJob`."""
        return self.devices * self.num_nodes

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`."""
        if num_ranks != self.num_ranks():
            raise ValueError(f"devices ({self.devices}) x num_nodes ({self.num_nodes}) is {self.num_ranks()}, but "
                             f"{num_ranks} processes were started")  # fmt: skip

    def run(self, run: Run) -> Outcome:
        """Train; go on from the newest checkpoint where the folder has one."""
        from nemo_vfm.train.lightning.trainer import train

        return train(self, run)
