"""Shows how far a Lightning module's training is, as our own trainings do."""

from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from nemo_vfm.core import log
from nemo_vfm.train.lightning import steps


class LightningBar(Callback):
    """A bar over the optimizer steps."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the bar up."""
        self._shown = steps.done(trainer)
        total = steps.total(trainer, self._shown)
        self._bar = self._stack.enter_context(log.bar("training", total, completed=self._shown, unit="steps"))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        """Move it on."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        reached = steps.reached(trainer)
        self._bar.advance(reached - self._shown, "" if loss is None else f"loss {float(loss):.4f}")
        self._shown = reached

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take it down."""
        self._stack.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take it down before the error is shown."""
        self._stack.close()
