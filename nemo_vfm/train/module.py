# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Wraps a Fit as the one LightningModule, and adapts our plain callbacks to Lightning's.

Lightning owns the outer loop, callbacks and loggers. The engine owns the step, with reduction, clipping and update.
So optimisation is manual, and Lightning accumulates, clips and samples nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Callback as LightningCallback
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor

from nemo_vfm.core import log, preemption, progress
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.predict import predictions
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.task import Predicts
from nemo_vfm.parallel.ranks.process_group import now, take_pulse
from nemo_vfm.parallel.ranks.rank_watchdog import READS
from nemo_vfm.train.callbacks.callback import HOOKS, Callback
from nemo_vfm.train.train_state import Fit


class TrainModule(LightningModule):
    """Hands each global batch to the fit; holds no parameters of its own."""

    def __init__(self, fit: Fit) -> None:
        super().__init__()
        self.fit = fit
        self.automatic_optimization = False

    def on_train_start(self) -> None:
        """Lightning would end at SIGTERM by an exception, in the middle of anything; the fit ends after its step."""
        preemption.listen_again()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One optimizer step."""
        take_pulse()
        now(f"takes step {self.fit.step + 1}")
        self.fit.advance(batch)
        progress.step(self.fit.step, self.fit.total_steps)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """What the model says of a batch, (B, T, K), through the task that it is trained by.

        Raises:
            UserError: the task only trains.
        """
        task = self.fit.task
        if not isinstance(task, Predicts):
            raise UserError(f"{type(task).__name__} has no predict, so what its model gives says nothing by itself")
        return predictions(self.fit.model, task, batch.to(device()))

    def configure_optimizers(self) -> None:
        """None: the engine owns the optimizer."""


class Adapter(LightningCallback):
    """Lets Lightning call a plain callback: each hook that the callback has is passed on with the fit."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass on."""
        self._call("on_start", pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Pass on."""
        self._call("on_step", pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass on."""
        self._call("on_end", pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Bars must be taken down before the error is shown; what a callback says meanwhile does not take its place."""
        try:
            self._call("on_end", pl_module)
        except NemoVfmError as error:
            log.warn(str(error))

    def _call(self, hook: str, module: LightningModule) -> None:
        assert hook in HOOKS
        assert isinstance(module, TrainModule)
        now(f"is in {hook} of {type(self.callback).__name__} after step {module.fit.step}")
        getattr(self.callback, hook, lambda fit: None)(module.fit)


class _Stop(LightningCallback):
    """Ends the outer loop when the fit has reached its length, which may be one in seconds, or was asked to end."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, TrainModule)
        trainer.should_stop = pl_module.fit.finished or pl_module.fit.preempted
        now(f"{READS} of step {pl_module.fit.step + 1}")


class _Alone(LightningEnvironment):
    """Lightning sees one process: which others there are is the engine's business, and torchrun's names stay set."""

    def teardown(self) -> None:
        pass


def trainer(fit: Fit, callbacks: Mapping[str, object], loggers: Sequence[Logger], folder: Path) -> Trainer:
    """A Lightning Trainer that loops until the fit is finished."""
    adapted = [c if isinstance(c, LightningCallback) else Adapter(c) for c in callbacks.values()]  # type: ignore[arg-type]
    remaining = None if fit.total_steps is None else fit.total_steps - fit.step
    return Trainer(
        accelerator="gpu" if device().type == "cuda" else "cpu", devices=[device().index] if device().index else 1,
        plugins=[_Alone()], max_epochs=1, limit_train_batches=remaining,
        callbacks=[*adapted, _Stop()], logger=loggers or False, default_root_dir=folder,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
