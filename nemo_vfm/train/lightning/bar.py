# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Shows how far a Lightning module's training is, as our own trainings do."""

import math
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from nemo_vfm.core import log


class LightningBar(Callback):
    """A bar over the optimizer steps."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the bar up."""
        total = float(trainer.estimated_stepping_batches)
        self._shown = trainer.global_step
        length = round(total) if math.isfinite(total) and total >= 0 else None
        self._bar = self._stack.enter_context(log.bar("training", length, completed=self._shown, unit="steps"))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        """Move it on."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        self._bar.advance(trainer.global_step - self._shown, "" if loss is None else f"loss {float(loss):.4f}")
        self._shown = trainer.global_step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take it down."""
        self._stack.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take it down before the error is shown."""
        self._stack.close()
