"""Wraps a training as one LightningModule: the model's weights, its optimizer, its steps and its numbers.

Lightning owns the outer loop, callbacks and loggers. The engine owns the step, with reduction, clipping and update.
So optimisation is manual, and Lightning accumulates, clips and samples nothing.
"""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from nemo_vfm.core import preemption, progress
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.predict import predictions
from nemo_vfm.core.types.task import Predicts
from nemo_vfm.parallel.ranks.process_group import now, take_pulse
from nemo_vfm.train.state.train_state import TrainState


class ShownRates(LRScheduler):
    """The rates of the coming step, for whoever asks a scheduler; the training sets them, and nothing else does."""

    def step(self, epoch: int | None = None) -> None:
        """Look at them again: one for each group of parameters."""
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


class TrainModule(LightningModule):
    """Hands each global batch to the engine; its parameters and its state are the model's."""

    def __init__(self, fit: TrainState) -> None:
        super().__init__()
        self.fit, self.model = fit, fit.model
        self.automatic_optimization = False

    @property
    def device(self) -> torch.device:
        """Where the engine has put the model."""
        return device()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's."""
        return self.model(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The model's, under the names that its checkpoints have."""
        found: dict[str, Any] = self.model.state_dict(*args, **kwargs)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """The inverse of `state_dict`."""
        return self.model.load_state_dict(state_dict, strict=strict, assign=assign)

    def configure_optimizers(self) -> Any:
        """The engine's optimizers, which the engine alone steps, and their learning rates, which follow the steps."""
        optimizers = [one.optimizer for one in self.fit.runner.dense]
        return optimizers, [{"scheduler": ShownRates(one), "interval": "step"} for one in optimizers]

    def on_train_start(self) -> None:
        """Lightning would end at SIGTERM by an exception, in the middle of anything; the fit ends after its step."""
        preemption.listen_again()
        self._count()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One optimizer step."""
        take_pulse()
        now(f"takes step {self.fit.step + 1}")
        self.fit.advance(batch)
        schedulers: Any = self.lr_schedulers()  # a list where there are several
        for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
            scheduler.step()
        self._count()
        # It takes a millisecond, and where no callback of Lightning's could ask for it the interval is 0.
        if self.trainer.log_every_n_steps:  # type: ignore[attr-defined]
            # Loggers get the numbers with the step's line of metrics.jsonl, which also has what callbacks measured.
            finite = {name: value for name, value in self.fit.metrics.items() if math.isfinite(value)}
            self.log_dict(finite, logger=False, batch_size=len(batch))
        progress.step(self.fit.step, self.fit.total_steps)

    def _count(self) -> None:
        """Tell Lightning the number of steps, those before a resume among them: callbacks and loggers ask for it."""
        loop = self.trainer.fit_loop.epoch_loop
        done = loop.manual_optimization.optim_step_progress.total
        done.ready = done.completed = self.fit.step

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the mean loss of held-out batches, by the weights of their samples, as `val_loss`."""
        self._measure("val_loss", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the same as `test_loss`."""
        self._measure("test_loss", batch)

    def _measure(self, name: str, batch: Batch) -> None:
        with self.fit.ema.apply_to(self.model) if self.fit.ema else nullcontext():
            losses_B, prepared = self.fit.runner.evaluate(batch)
        weight = float(prepared.weight_B.sum())
        mean = float((losses_B * prepared.weight_B).sum()) / max(weight, 1e-12)
        # Lightning's mean is by batch_size, which need not be a whole number.
        self.log(name, mean, on_step=False, on_epoch=True, batch_size=weight)  # type: ignore[arg-type]

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """What the model says of a batch, (B, T, K), through its task. UserError if that only trains."""
        task = self.fit.task
        if not isinstance(task, Predicts):
            raise UserError(f"{type(task).__name__} has no predict, so its model's output has no meaning by itself")
        return predictions(self.model, task, batch.to(device()))

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """A Batch moves itself, and the engine asks it to: Lightning must not copy it field by field."""
        return batch
