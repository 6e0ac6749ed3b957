# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Lets any Lightning training be killed and resumed as if nothing had happened.

Lightning's checkpoint has weights, optimizers and counts of steps. It has neither the place in the data nor the state
of random numbers. So all of these are functions of the seed, the epoch and the step. The order of an epoch is drawn
from its number. A resume reads its first batches again and drops them. Each step draws its own random numbers.
"""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher

from nemo_vfm.core import log, preemption, ranks
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.storage.files import sync
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.parallel.ranks.consensus import first_says, greatest
from nemo_vfm.train.lightning.best import BestSoFar, KeepBest, existing

PROMISE = "Ctrl-C: the run ends after this step, with a checkpoint; press it again to end at once, without one"


def seed_all(seed: int) -> None:
    """Whatever a module may draw from: torch, numpy, Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def newest(folder: Path) -> Path | None:
    """The checkpoint to resume from, the same on every rank."""
    name = first_says(str(([Path(), *existing(folder)])[-1].name))
    return folder / "checkpoints" / name if name else None


class ExactResume(Callback):
    """Gives each epoch and each step random numbers of its own, and finds the place in the data again.

    Args:
        seed: the run's.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self._in_epoch = seed, False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning has begun to read already; begin anew, and go to the batch that comes next."""
        fetcher = trainer.fit_loop._data_fetcher
        assert fetcher is not None
        done = _batches_done(trainer)
        if isinstance(fetcher, _DataLoaderIterDataFetcher) or _keeps_its_place(trainer):
            return  # the module reads by itself, or Lightning has put the loader where it was
        self._seed("epoch", trainer.current_epoch, own=False)
        iter(fetcher)
        self._in_epoch = done > 0  # Lightning says no more that an epoch starts, where it resumes in the middle of one
        for number in range(done):
            next(fetcher)
            self._before(number + 1, trainer.current_epoch)
        fetcher.fetched -= done  # Lightning adds them
        if done:
            log.info(f"{done} batches of epoch {trainer.current_epoch} were read again, to resume at the next")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The order of the epoch, which is drawn with its first batch; that of the first epoch was seeded before."""
        if self._in_epoch:
            self._seed("epoch", trainer.current_epoch, own=False)
        self._in_epoch = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Numbers of the step."""
        self._seed("step", trainer.current_epoch, batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Numbers of reading the next batch."""
        self._before(batch_idx + 1, trainer.current_epoch)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The same, where a validation has drawn some."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._before(trainer.fit_loop.epoch_loop.batch_idx + 1, trainer.current_epoch)

    def _before(self, batch: int, epoch: int) -> None:
        self._seed("read", epoch, batch)

    def _seed(self, *names: str | int, own: bool = True) -> None:
        """Ranks draw numbers of their own, but for the order of the data, of which each takes its share."""
        seed_all(derive(self.seed, *names, ranks.rank() if own else 0))


def _batches_done(trainer: Trainer) -> int:
    """Of the present epoch, before a resume; Lightning counts them anew only after its callbacks were told to start."""
    done: int = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    loop = trainer.fit_loop
    is_between = loop.restarted_on_epoch_end or loop.resumed_on_epoch_end or done >= trainer.num_training_batches
    return 0 if is_between or not trainer.ckpt_path else done


def _keeps_its_place(trainer: Trainer) -> bool:
    loader = trainer.fit_loop._combined_loader
    return loader is not None and any(hasattr(one, "load_state_dict") for one in loader.flattened)


class SaveAndStop(Checkpoint):
    """Writes `checkpoints/step-<n>.ckpt`, and ends the run after one where a signal asks for it.

    It is a `Checkpoint` so that Lightning calls it behind all others, and at an epoch's end behind the module itself.
    `trainer.checkpoint_callback` is this one unless the recipe names another.

    Args:
        folder: the run folder.
        every_steps: optimizer steps between two; there is always one at the end of an epoch.
        keep_last: how many of the newest stay.
        keep_best: by what one more stays, the best; None keeps none.
    """

    def __init__(self, folder: WritePath, every_steps: int, keep_last: int, keep_best: KeepBest | None = None) -> None:
        self.folder, self.every_steps, self.keep_last = folder, every_steps, keep_last
        self.best = BestSoFar(folder / "checkpoints", keep_best)
        self._saved, self._urgency, self._waits = -1, 0.0, False

    @property
    def dirpath(self) -> str:
        """As of Lightning's `ModelCheckpoint`."""
        return str(self.folder / "checkpoints")

    @property
    def last_model_path(self) -> str:
        """The newest; empty before the first."""
        return str(["", *existing(self.folder)][-1])

    @property
    def best_model_path(self) -> str:
        """The best; where nothing decides which that is, the newest."""
        return self.last_model_path if self.best.keep is None else str(self.best.path or "")

    @property
    def best_model_score(self) -> torch.Tensor | None:
        """The metric's value then; None where there is none."""
        return None if self.best.step < 0 else torch.tensor(self.best.score)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing new to save yet."""
        self._saved = trainer.global_step
        self.best.link()  # a kill may have come between the checkpoint and the link

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save where due; a validation that belongs to this step, and the end of an epoch, come before."""
        (self._urgency,) = greatest(max(self._urgency, preemption.urgency()))
        loop, step = trainer.fit_loop.epoch_loop, trainer.global_step
        due = self._urgency > 0 or step // self.every_steps > self._saved // self.every_steps
        if not due or loop._should_accumulate() or loop.batch_progress.is_last_batch:
            return
        assert trainer.fit_loop._data_fetcher is not None
        self._waits = trainer.enable_validation and loop._should_check_val_fx(trainer.fit_loop._data_fetcher)
        if not self._waits:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save where a step has waited for it, or is the best; at the end of an epoch, that comes first."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        is_best = self.best.improves(trainer.callback_metrics, trainer.global_step)
        if self._waits or (is_best and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch):
            self._waits = False
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save."""
        is_best = self.best.improves(trainer.callback_metrics, trainer.global_step)
        if is_best or trainer.global_step > self._saved:
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where none could be chosen."""
        if self.best.keep is not None and self.best.step < 0:
            logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            log.warn(f"keep_best: no checkpoint is the best, since no validation and no epoch ended with a finite "
                     f"{self.best.keep.metric}; the module logged {logged}")  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """The choice of the best survives a resume."""
        return self.best.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse."""
        self.best.load_state_dict(state_dict)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End, where an end was asked for: by now all that was logged before is written."""
        if self._urgency and self._saved == trainer.global_step:
            where = self.folder / "checkpoints"
            raise preemption.stopped(self._urgency, f"at step {self._saved}, whose checkpoint is in {where}")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The same."""
        self.on_train_epoch_start(trainer, pl_module)

    def _save(self, trainer: Trainer) -> None:
        path = self.folder / "checkpoints" / f"{checkpoint_names.name(trainer.global_step)}{checkpoint_names.LIGHTNING}"
        unfinished = path.with_name(f".{path.stem}.tmp.ckpt")
        try:
            trainer.save_checkpoint(unfinished)  # by every rank: some strategies gather weights for it
        except OSError:  # a full disk needs its room for what is said of it
            if ranks.is_first():
                _remove(unfinished)
            raise
        if ranks.is_first():
            _replace(unfinished, path)
            self.best.link()
            for old in existing(self.folder)[: -self.keep_last]:
                if old != self.best.path:
                    _remove(old)
        greatest(0.0)
        self._saved = trainer.global_step


def _replace(unfinished: Path, path: Path) -> None:
    """A sharded checkpoint is a folder."""
    _remove(path)
    if unfinished.is_file():
        sync(unfinished)
    unfinished.rename(path)
    sync(path.parent)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
