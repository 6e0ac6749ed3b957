"""Saves checkpoints every so many steps and at the end, and keeps the newest, the best and some others.

They are written while the training continues. The end of a run waits for the last one.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.core import log
from nemo_vfm.core.errors import StoreError
from nemo_vfm.core.metric_names import VALIDATION_LOSSES, Mode, natural_mode, validation_loss
from nemo_vfm.core.storage.checkpoint_names import Keep
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.types.json_value import Json

if TYPE_CHECKING:
    from nemo_vfm.parallel.checkpoint.checkpoint_saver import Saver
    from nemo_vfm.train.state.train_state import TrainState


class SaveCheckpoints:
    """Writes `checkpoints/step-<n>/`.

    Args:
        every_steps: optimizer steps between checkpoints; there is always one at the end.
        keep_last: how many of the newest stay on disk; None keeps all.
        keep_best: how many of the best stay as well, by `metric`.
        metric: what is best; it counts where it was measured at the very step of the checkpoint. val_loss is the
            validation loss, also where it is logged as val/loss or valid_loss.
        mode: whether a small (min) or a large (max) value of it is good; None takes max for an AUC, and else min.
        keep_every_steps: every how many steps a checkpoint is never deleted; None marks none.
        copy_to: folder of an object store where each goes as well, kept by the same rule, and from which a run whose
            own folder is gone resumes; None keeps them here alone. A store that fails is reported and tried again at
            the next one; at the end the copy must succeed.
        asynchronous: write in the background, from a copy in host memory that is as large as what this process saves
            and stays for the length of the run; False stops the training until the disk has it. An error of the
            background ends the run at its next step, with several processes at its next checkpoint.
    """

    def __init__(
        self, *, every_steps: int = 1000, keep_last: int | None = 2, keep_best: int = 0, metric: str = "val_loss",
        mode: Mode | None = None, keep_every_steps: int | None = None, copy_to: Address | None = None,
        asynchronous: bool = True,
    ) -> None:  # fmt: skip
        if every_steps < 1 or (keep_every_steps is not None and keep_every_steps < 1):
            raise ValueError(f"every_steps ({every_steps}) and keep_every_steps ({keep_every_steps}) must be at "
                             f"least 1")  # fmt: skip
        self.every_steps, self.keep_every_steps = every_steps, keep_every_steps
        self.keep = Keep(last=keep_last, best=keep_best, metric=metric, mode=mode or natural_mode(metric))
        self.copy_to, self.asynchronous = copy_to, asynchronous
        self._saver: Saver | None = None

    def begin(self, folder: Path, settings: Mapping[str, Json]) -> None:
        """Before a run looks for its checkpoints: where it has none, its newest copy is fetched."""
        if self.copy_to is not None:
            from nemo_vfm.parallel.checkpoint import checkpoint_store

            checkpoint_store.begin(self.copy_to, folder, settings)

    def copy(self, folder: Path, *, must: bool) -> None:
        """Bring the store up to the folder; rank 0 does it. StoreError only where it `must` succeed."""
        if self.copy_to is None:
            return
        from nemo_vfm.parallel.checkpoint import checkpoint_store

        try:
            checkpoint_store.copy(folder, self.copy_to, self.keep)
        except StoreError as error:
            if must:
                raise
            log.warn(f"The checkpoint was kept here but not copied: {error}. It is retried at the next checkpoint.")

    def on_step(self, fit: "TrainState") -> None:
        """Save where due; where nothing comes after it, wait until it is there."""
        from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
        from nemo_vfm.parallel.checkpoint.checkpoint_saver import Saver
        from nemo_vfm.parallel.checkpoint.checkpoint_writer import CheckpointInfo

        # One for a run: it keeps its memory from save to save.
        if self._saver is None or self._saver.folder != fit.checkpoints:
            self._saver = Saver(fit.checkpoints, gather_group(), asynchronous=self.asynchronous)
        saver = self._saver
        saver.check()
        permanent = self.keep_every_steps is not None and fit.step % self.keep_every_steps == 0
        if not (permanent or fit.preempted or fit.is_due(self.every_steps)):
            return
        metrics = {name: float(value) for name, value in fit.metrics.items() if math.isfinite(value)}
        if self.keep.metric in VALIDATION_LOSSES and (name := validation_loss(metrics)):
            metrics.setdefault(self.keep.metric, metrics[name])
        if self.keep.best and self.keep.metric not in metrics:
            log.warn_once(
                f"{self.keep.metric} was not measured at every checkpoint's step (measured: "
                f"{', '.join(sorted(metrics))}), so the best cannot be chosen; hold samples out, and make "
                f"loop.checkpoint.every_steps a multiple of loop.validation.every_steps"
            )
        about = CheckpointInfo(fit.origin, metrics, permanent)
        saver.save(fit.step, fit.groups(), fit.state(), self.keep, about,
                   then=partial(self.copy, fit.checkpoints, must=fit.finished or fit.ended_early))  # fmt: skip
        if fit.ends:
            saver.finish()

    def on_end(self, fit: "TrainState") -> None:
        """Wait for what is being written; and say it where nothing was ever measured to choose the best by."""
        saver, self._saver = self._saver, None
        if saver is not None:
            saver.finish()
        if not (self.keep.best and fit.finished):
            return
        from nemo_vfm.parallel.checkpoint.checkpoint_folder import records

        if not any(self.keep.metric in record.metrics for record in records(fit.checkpoints)):
            log.warn(f"keep_best: {self.keep.best} had no effect: no checkpoint was written at a step with a "
                     f"{self.keep.metric}; only the newest were kept")  # fmt: skip
