"""Ends a Lightning run whose loss stays NaN or infinite."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.metric_names import not_finite_since, not_finite_text
from nemo_vfm.core.storage.files import last_records
from nemo_vfm.parallel.ranks.process_group import all_reduce_max

IN_A_ROW = 8  # batches: one alone may be the data's fault, and mixed precision skips some updates


class StopAtNaN(Callback):
    """Counts batches without a finite loss, and ends the run, on all ranks, after so many in a row.

    Args:
        metrics: the run's metrics.jsonl, which says since which step.
    """

    def __init__(self, metrics: Path) -> None:
        self._metrics, self._batches, self._in_a_row = metrics, 0, 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count one; ranks agree every few batches, since each agreement takes time."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        losses: list[Any] = [loss]
        if loss is None:  # of a module that optimises by itself: what it logs by such a name
            logged = trainer.callback_metrics.items()
            losses = [value for name, value in logged if "loss" in name and not name.startswith(("val", "test"))]
        self._in_a_row = 0 if all(math.isfinite(float(one)) for one in losses) else self._in_a_row + 1
        self._batches += 1
        if self._batches % IN_A_ROW == 0 and all_reduce_max(float(self._in_a_row)) >= (IN_A_ROW,):
            self._stop("stays")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A callback that wants finite numbers, as EarlyStopping does, ends a run sooner, as if it had succeeded."""
        if trainer.should_stop and all_reduce_max(float(self._in_a_row)) > (0,):
            self._stop("ends as")

    def _stop(self, how: str) -> None:
        since = not_finite_text(not_finite_since(last_records(self._metrics)))
        found = f" ({since})" if since else ""
        raise UserError(f"the loss {how} NaN or infinite, and on_nan is stop{found}. Lower the learning rate, set "
                        f"trainer.gradient_clip_val, or look for damaged samples; with on_nan=continue the run "
                        f"continues")  # fmt: skip
