"""Lets any Lightning training be killed and resumed as if nothing had happened.

Lightning's checkpoint has weights, optimizers and counts of steps. Random numbers are functions of the seed, the epoch
and the step. The rest stands in the checkpoint under `KEPT`, for each rank: the place in the data, the metrics and the
means of the running epoch, what was logged last, and what a finder found. It is written between two steps, when all of
a step is done: its validation, its lines, its schedulers.
"""

import random
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, Checkpoint, LearningRateFinder
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.parsing import lightning_getattr, lightning_hasattr, lightning_setattr
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from nemo_vfm.core import log, preemption, ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.storage.files import sync
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.parallel.ranks.process_group import all_reduce_max, first_says
from nemo_vfm.train.lightning import steps
from nemo_vfm.train.lightning.best import FINAL, BestSoFar, KeepBest, list_checkpoints
from nemo_vfm.train.lightning.data_place import DataPlace, around
from nemo_vfm.train.lightning.running_state import (
    Seen,
    keep_unchanged,
    of_all_ranks,
    running_state,
    set_running_state,
    unsaved_buffers,
)

KEPT = "nemo_vfm"
PROMISE = "Ctrl-C: the run ends after this step, with a checkpoint; press it again to end at once, without one"


def seed_all(seed: int) -> None:
    """Whatever a module may draw from: torch, numpy, Python."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # each kind of device that is not there kept a traceback: a tenth of a small run
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint to resume from, the same on every rank."""
    name = first_says(str(([Path(), *list_checkpoints(folder)])[-1].name))
    return folder / "checkpoints" / name if name else None


class ExactResume(Callback):
    """Gives each epoch, read and step random numbers of its own, and goes on where a checkpoint of `SaveAndStop` was.

    It stands before all other callbacks, which may draw.

    Args:
        seed: the run's.
        resumes: a checkpoint will be read.
    """

    def __init__(self, seed: int, *, resumes: bool) -> None:
        self.seed, self.resumes = seed, resumes
        self._kept: dict[str, Any] | None = None
        self._unsaved: Seen = {}
        self._loaded: dict[str, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lightning has no hooks for callbacks between what follows."""
        loop = trainer.fit_loop
        self.place = DataPlace(trainer, self._seed)
        around(loop, "on_run_start", then=lambda: self._go_on(trainer, pl_module))
        begin, go_on = partial(self._begin_epoch, trainer), partial(self._go_on_in_epoch, trainer, pl_module)
        around(loop.epoch_loop, "on_run_start", first=begin, then=go_on)
        if self.resumes and type(pl_module).on_load_checkpoint is not LightningModule.on_load_checkpoint:
            load = partial(self._load, trainer.strategy.load_checkpoint)
            trainer.strategy.load_checkpoint = load  # type: ignore[method-assign]
        for finder in _finders(trainer):
            search = partial(self._find, trainer, pl_module, finder.on_fit_start)
            finder.on_fit_start = search  # type: ignore[method-assign]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take what Lightning does not know; those that its finders read for themselves have none of it."""
        if kept := checkpoint.get(KEPT):
            if len(kept) != ranks.count():
                log.warn(f"the checkpoint is of {len(kept)} processes and this run has {ranks.count()}: this epoch's "
                         f"means, its metrics and the position in the data are inexact until the next epoch"
                         )  # fmt: skip
            self.place.kept = self._kept = kept[min(ranks.rank(), len(kept) - 1)]
            loops = checkpoint["loops"]["fit_loop"]
            loops["state_dict"].pop("combined_loader", None)
            for counts in map(loops["epoch_loop.batch_progress"].get, ("total", "current")):
                counts.update(dict.fromkeys(counts, counts["ready"]))  # a batch that ended its epoch by -1 lags

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A resume has no such check, which may fill buffers."""
        self._unsaved = unsaved_buffers(pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Numbers of the hooks that follow; `DataPlace` seeds the order again."""
        self._seed("epoch", trainer.current_epoch, own=False)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Numbers of the step; `batch_idx` lags behind where the module reads by itself."""
        self._seed("step", trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_idx)

    def state(self, trainer: Trainer) -> dict[str, Any]:
        """What `_go_on` needs of this rank."""
        module, found = trainer.lightning_module, {}
        for one in _finders(trainer):  # the attributes of the module or its data that they set
            own = one._batch_arg_name if isinstance(one, BatchSizeFinder) else one._attr_name  # type: ignore[attr-defined]
            for name in [own] if own else ["lr", "learning_rate"]:
                if lightning_hasattr(module, name):
                    found[name] = lightning_getattr(module, name)
        return running_state(trainer, module, self._unsaved) | self.place.state() | {"found": found}

    def _load(self, load: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """A module takes its own from a checkpoint once more where an epoch is started again, and may take it out."""
        checkpoint = load(*args, **kwargs)
        self._loaded = {name: dict(value) if type(value) is dict else value for name, value in checkpoint.items()}
        return checkpoint

    def _find(self, trainer: Trainer, module: LightningModule, search: Callable[..., None], *_: Any) -> None:
        """A second search would be on weights that are trained already."""
        if ranks.is_first():
            for pattern in (".lr_find_*.ckpt", ".scale_batch_size_*.ckpt"):  # of a search that was killed
                for path in Path(trainer.default_root_dir).glob(pattern):
                    path.unlink()
        if not self.resumes:
            search(trainer, module)
        elif self._kept is not None:
            _set_found(trainer, self._kept["found"])
            trainer.fit_loop._combined_loader = None  # `configure_optimizers` may have asked for smaller batches

    def _go_on(self, trainer: Trainer, module: LightningModule) -> None:
        """The training starts: modules have reset in `on_train_start` what they like."""
        if _is_search(trainer, self):
            return
        self._unsaved = self._unsaved or unsaved_buffers(module)
        if self._kept is None:
            if self.resumes:
                raise UserError(f"{trainer.ckpt_path} was not written by this version of LightningFit, so the run "
                                f"cannot be resumed exactly; start it in a new run folder")  # fmt: skip
            _forget_restart(trainer)
            return
        _set_found(trainer, self._kept["found"])
        self.place.find_loaders()
        if self._kept["in_epoch"]:
            again = partial(self._start_epoch_again, trainer, module, trainer.fit_loop.on_advance_start)
            trainer.fit_loop.on_advance_start = again  # type: ignore[method-assign]
        else:
            self._loaded = None
            set_running_state(trainer, module, self._kept)
            _forget_restart(trainer)

    def _start_epoch_again(self, trainer: Trainer, module: LightningModule, start: Callable[[], None]) -> None:
        """The epoch has been started, but not in this process: its hooks may set attributes, datasets, the Trainer."""
        loop = trainer.fit_loop
        loop.on_advance_start = start  # type: ignore[method-assign]
        epoch = loop.epoch_progress.current
        epoch.ready = epoch.started = epoch.completed + 1  # type: ignore[attr-defined]
        with keep_unchanged(trainer, module):
            call._call_callback_hooks(trainer, "on_train_epoch_start")
            call._call_lightning_module_hook(trainer, "on_train_epoch_start")
        if self._loaded is not None:
            module.on_load_checkpoint(self._loaded)
            self._loaded = None
        if trainer.current_epoch and loop._data_fetcher is not None:  # the first epoch is read before its hooks
            self.place.begin_epoch()
            iter(loop._data_fetcher)

    def _begin_epoch(self, trainer: Trainer) -> None:
        """Lightning reads the first epoch of a process from where it was set up."""
        is_first = trainer.current_epoch == 0 or (self._kept is not None and self._kept["in_epoch"])
        if not is_first and not _is_search(trainer, self):
            self.place.begin_epoch()

    def _go_on_in_epoch(self, trainer: Trainer, module: LightningModule) -> None:
        if self._kept is None or _is_search(trainer, self):
            return
        if self._kept["in_epoch"]:
            set_running_state(trainer, module, self._kept)
            self.place.find()
            _forget_restart(trainer)
        self.place.kept = self._kept = None

    def _seed(self, *names: str | int, own: bool = True) -> None:
        """Ranks draw numbers of their own, but for the order of the data, of which each takes its share."""
        seed_all(derive(self.seed, *names, ranks.rank() if own else 0))


def _forget_restart(trainer: Trainer) -> None:
    """Checkpoints lie between steps. Lightning, which has others, would now leave out validations and schedulers."""
    loop = trainer.fit_loop
    for one in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
        one._restarting = one._resuming_from_checkpoint = False


def _is_search(trainer: Trainer, callback: Callback) -> bool:
    """Whether a finder tries the loops: then it has put callbacks of its own in the place of the run's."""
    return callback not in trainer.callbacks  # type: ignore[attr-defined]


def _finders(trainer: Trainer) -> list[Callback]:
    return [one for one in trainer.callbacks if isinstance(one, LearningRateFinder | BatchSizeFinder)]  # type: ignore[attr-defined]


def _set_found(trainer: Trainer, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        lightning_setattr(trainer.lightning_module, name, value)


class SaveAndStop(Checkpoint):
    """Writes `checkpoints/step-<n>.ckpt`, and ends the run after one where a signal asks for it.

    It is a `Checkpoint` so that Lightning calls it behind all others, and at an epoch's end behind the module itself.
    `trainer.checkpoint_callback` is this one unless the recipe names another.

    Args:
        folder: the run folder.
        every_steps: optimizer steps between two; there is always one at the end of an epoch.
        keep_last: how many of the newest stay.
        exact: knows what a resume needs.
        keep_best: by what one more stays, the best; None keeps none.
    """

    def __init__(
        self, folder: WritePath, every_steps: int, keep_last: int, exact: ExactResume, keep_best: KeepBest | None = None
    ) -> None:  # fmt: skip
        self.folder, self.every_steps, self.keep_last, self.exact = folder, every_steps, keep_last, exact
        self.dirpath = str(folder / "checkpoints")  #: as of Lightning's `ModelCheckpoint`
        self.best = BestSoFar(folder / "checkpoints", keep_best)
        self._saved, self._urgency, self._validated = -1, 0.0, False
        self._stepped, self._counted = False, 0  # as optimizers say, and as Lightning counts
        self._kept: list[dict[str, Any]] | None = None

    @property
    def last_model_path(self) -> str:
        """The newest; empty before the first."""
        return str(["", *list_checkpoints(self.folder)][-1])

    @property
    def best_model_path(self) -> str:
        """The best; where nothing decides which that is, the newest."""
        return self.last_model_path if self.best.keep is None else str(self.best.path or "")

    @property
    def best_model_score(self) -> torch.Tensor | None:
        """The metric's value then; None where there is none."""
        return None if self.best.step < 0 else torch.tensor(self.best.score)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing new to save yet. Behind the last hook of a step Lightning still logs and moves schedulers."""
        self._saved, self._counted = steps.completed_steps(trainer), trainer.global_step
        self.best.link()  # a kill may have come between the checkpoint and the link
        for one in trainer.optimizers:
            if isinstance(one, Optimizer):  # some strategies wrap it, and `global_step` counts theirs
                one.register_step_post_hook(self._note_step)
        around(trainer.fit_loop.epoch_loop, "on_advance_end", then=partial(self._after_step, trainer))
        around(trainer.fit_loop, "on_advance_end", then=partial(self._after_epoch, trainer))
        note, keep = partial(self._note_weights, trainer), partial(self._after_end, trainer)
        around(trainer.fit_loop, "on_run_end", first=note, then=keep)
        if ranks.is_first():
            _remove(self.folder / "checkpoints" / FINAL)  # of a shorter training

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add what Lightning leaves out."""
        if self._kept is not None:
            checkpoint[KEPT] = self._kept

    def _after_step(self, trainer: Trainer) -> None:
        """Save where due, and stop where asked; a step that ends its epoch is saved behind the epoch's end."""
        if _is_search(trainer, self):
            return
        (self._urgency,) = all_reduce_max(max(self._urgency, preemption.urgency()))
        loop, validated = trainer.fit_loop.epoch_loop, self._validated
        stepped = self._stepped or trainer.global_step > self._counted
        has_gradients = not (trainer.lightning_module.automatic_optimization or stepped)
        self._validated, self._stepped, self._counted = False, False, trainer.global_step
        if loop._should_accumulate() or loop.done:
            return
        is_best = validated and self.best.improves(trainer.callback_metrics, steps.completed_steps(trainer))
        is_due = self._urgency or steps.completed_steps(trainer) // self.every_steps > self._saved // self.every_steps
        if is_best or (is_due and not has_gradients):
            self._save(trainer)
            self._stop_if_asked()

    def _note_step(self, *_: Any) -> None:
        """A module that optimises by itself may gather gradients over several batches, and a checkpoint has none."""
        self._stepped = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The step that it belongs to may be the best."""
        self._validated = trainer.state.fn == "fit" and not trainer.sanity_checking

    def _after_epoch(self, trainer: Trainer) -> None:
        if _is_search(trainer, self):
            return
        if (
            self.best.improves(trainer.callback_metrics, steps.completed_steps(trainer))
            or steps.completed_steps(trainer) > self._saved
        ):
            self._save(trainer)
        if not trainer.fit_loop.done:
            self._stop_if_asked()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where none could be chosen."""
        if self.best.keep is not None and self.best.step < 0:
            logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            log.warn(f"keep_best: no checkpoint is the best, because no validation or epoch ended with a finite "
                     f"{self.best.keep.metric}; the module logged {logged}")  # fmt: skip

    def _note_weights(self, trainer: Trainer) -> None:
        self._sums = _sums(trainer.lightning_module)

    def _after_end(self, trainer: Trainer) -> None:
        """Keep what hooks have put into the weights at the end, such as an average."""
        if _is_search(trainer, self):
            return
        (has_changed,) = all_reduce_max(float(_sums(trainer.lightning_module) != self._sums))
        if has_changed:
            self._write(trainer, self.folder / "checkpoints" / FINAL)

    def state_dict(self) -> dict[str, Any]:
        """The choice of the best survives a resume."""
        return self.best.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse."""
        self.best.load_state_dict(state_dict)

    def _stop_if_asked(self) -> None:
        if self._urgency:
            where = self.folder / "checkpoints"
            raise preemption.preempted_error(self._urgency, f"at step {self._saved}; its checkpoint is in {where}")

    def _save(self, trainer: Trainer) -> None:
        path = (
            self.folder
            / "checkpoints"
            / f"{checkpoint_names.name(steps.completed_steps(trainer))}{checkpoint_names.LIGHTNING}"
        )
        self._kept = of_all_ranks(self.exact.state(trainer))
        try:
            self._write(trainer, path)
        finally:
            self._kept = None
        if ranks.is_first():
            self.best.link()
            for old in list_checkpoints(self.folder)[: -self.keep_last]:
                if old != self.best.path:
                    _remove(old)
        all_reduce_max(0.0)
        self._saved = steps.completed_steps(trainer)

    def _write(self, trainer: Trainer, path: Path) -> None:
        unfinished = path.with_name(f".{path.stem}.tmp.ckpt")
        try:
            trainer.save_checkpoint(unfinished)  # by every rank: some strategies gather weights for it
        except OSError:  # a full disk needs its room for what is said of it
            if ranks.is_first():
                _remove(unfinished)
            raise
        if ranks.is_first():
            _remove(path)
            if unfinished.is_file():  # a sharded checkpoint is a folder
                sync(unfinished)
            unfinished.rename(path)
            sync(path.parent)


def _sums(module: LightningModule) -> list[str]:
    """Of each weight; they tell whether one has changed, and cost no copy."""
    tensors = [one.detach() for one in (*module.parameters(), *module.buffers()) if one.is_floating_point()]
    parts = [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
    return [str(float(one.sum(dtype=torch.float32))) for one in parts]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
