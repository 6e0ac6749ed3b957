"""Sets Lightning's loop up for a training: our callbacks and Lightning's beside each other, on every rank."""

import logging
import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback as LightningCallback
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Checkpoint,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    ProgressBar,
    StochasticWeightAveraging,
    WeightAveraging,
)

from nemo_vfm.core import log
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.parallel.ranks.process_group import now
from nemo_vfm.parallel.ranks.rank_watchdog import READS
from nemo_vfm.train.callbacks.callback import HOOKS, Callback
from nemo_vfm.train.engine_strategy import EngineEnvironment, EngineStrategy
from nemo_vfm.train.loggers.run_logger import RunLogger
from nemo_vfm.train.module import TrainModule
from nemo_vfm.train.state.train_state import TrainState


class LightningCallbackAdapter(LightningCallback):
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


class _TakeLogged(LightningCallback):
    """Puts what Lightning's callbacks have logged into the step's metrics; what the step itself says goes first."""

    def __init__(self, logger: RunLogger) -> None:
        self.logger = logger

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, TrainModule)
        logged = {name: float(value) for name, value in trainer.logged_metrics.items() if value.numel() == 1}
        pl_module.fit.metrics = self.logger.take() | logged | pl_module.fit.metrics


class _Stop(LightningCallback):
    """Ends the outer loop when the fit has reached its length, which may be one in seconds, or was asked to end.

    What a callback asked of this rank alone is told to the others with the next step, after which all of them end.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainModule)
        pl_module.fit.end_wished = pl_module.fit.end_wished or trainer.should_stop
        trainer.should_stop = pl_module.fit.ends

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.on_fit_start(trainer, pl_module)
        assert isinstance(pl_module, TrainModule)
        now(f"{READS} of step {pl_module.fit.step + 1}")


def trainer(fit: TrainState, before: Mapping[str, object], ours: Mapping[str, object], logger: RunLogger) -> Trainer:
    """A Lightning Trainer that loops until the fit is finished; `ours` come once the step's metrics are complete.

    UserError if a callback of the recipe, among `before`, cannot work here.
    """
    theirs = any(isinstance(one, LightningCallback) for one in before.values())
    callbacks = [
        *_lightning_callbacks(before),
        *([_TakeLogged(logger)] if theirs else []),
        *_lightning_callbacks(ours),
        _Stop(),
    ]
    remaining = None if fit.total_steps is None else fit.total_steps - fit.step
    made = Trainer(
        accelerator="gpu" if device().type == "cuda" else "cpu", devices=[device().index] if device().index else 1,
        strategy=EngineStrategy(), plugins=[EngineEnvironment()], max_epochs=1, limit_train_batches=remaining,
        limit_val_batches=0, callbacks=callbacks, logger=logger, log_every_n_steps=int(theirs),
        default_root_dir=fit.run.folder,
        enable_checkpointing=False, enable_progress_bar=has_bar(before),
        enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
    )  # fmt: skip
    loop = made.fit_loop.epoch_loop
    loop._batches_that_stepped = fit.step  # where loggers put what callbacks log
    # With several ranks Lightning asks each step whether one got SIGTERM; the fit asks that already.
    loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return made


#: Callbacks that need epochs, validations or optimizers of Lightning's, of which there are none here.
_NEEDS_EPOCHS = (
    BackboneFinetuning, BatchSizeFinder, EarlyStopping, EMAWeightAveraging, GradientAccumulationScheduler,
    LearningRateFinder, ModelPruning, StochasticWeightAveraging, WeightAveraging,
)  # fmt: skip


def has_bar(callbacks: Mapping[str, object]) -> bool:
    """Whether one of them is a progress bar of Lightning's, which takes the place of ours."""
    return any(isinstance(one, ProgressBar) for one in callbacks.values())


def _lightning_callbacks(callbacks: Mapping[str, object]) -> list[LightningCallback]:
    found: list[LightningCallback] = []
    for name, callback in callbacks.items():
        kind = type(callback).__name__
        if isinstance(callback, Checkpoint):
            raise UserError(f"callbacks.{name}: {kind} writes pickles, but training saves itself: use loop.checkpoint")
        if type(callback) in _NEEDS_EPOCHS:
            raise UserError(f"callbacks.{name}: {kind} needs the epochs, validations or optimizers of Lightning, which "
                            f"our training does not have; use it in a LightningFit")  # fmt: skip
        if not isinstance(callback, LightningCallback | Callback):
            raise UserError(f"callbacks.{name}: {kind} has no on_step and is not a lightning.pytorch.Callback; derive "
                            f"it from that class (pytorch_lightning's is another one)")  # fmt: skip
        found.append(callback if isinstance(callback, LightningCallback) else LightningCallbackAdapter(callback))
    return found


def quiet_lightning() -> None:
    """Silence what Lightning says about choices that are ours on purpose: no loaders or workers of its own."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.callbacks").setLevel(logging.INFO)  # such as the table of ModelSummary
    warnings.filterwarnings("ignore", category=UserWarning, module=r"lightning\.pytorch")
    # Where Slurm is installed, that we do not use it: tasks of srun are adopted as ranks, and need no Lightning for it.
    warnings.filterwarnings("ignore", message=r"The `srun` command is available on your system")
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\).*")  # its own, under torch 2.13
    # FSDP's fear is for outputs that somebody changes in place; a task computes a loss of them.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view tensor")
