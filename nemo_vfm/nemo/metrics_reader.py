"""Writes Lightning's steps as lines of `metrics.jsonl`, which our report draws; lost steps are dropped."""

import json
import math
from typing import Any

import lightning.pytorch as pl

from nemo_vfm.core.storage.files import drop_steps_after
from nemo_vfm.core.storage.write_path import WritePath

FILE = "metrics.jsonl"


class WriteNemoMetrics(pl.Callback):
    """One line a step: step, and whatever the model logged as a single number."""

    def __init__(self, folder: WritePath) -> None:
        self.file = folder / FILE

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drop the lines of steps that were lost with a kill."""
        if trainer.is_global_zero:
            drop_steps_after(self.file, trainer.global_step)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a line."""
        if not trainer.is_global_zero or trainer.global_step == 0:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        found = {} if loss is None else {"loss": float(loss)}
        found |= {name: float(value) for name, value in trainer.logged_metrics.items() if value.numel() == 1}
        finite = {name.replace(" ", "_"): value for name, value in found.items() if math.isfinite(value)}
        with self.file.open("a") as file:
            file.write(json.dumps({"step": trainer.global_step, **finite}) + "\n")
