"""Carries a `LightningFit` out: makes its parts, sets Lightning's Trainer up in the run folder, and trains."""

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from inspect import signature
from types import MethodType
from typing import Any, TypeVar

import lightning
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.strategies import Strategy
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nemo_vfm.core import log, preemption, ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.metric_names import NOT_FINITE, not_finite_since, not_finite_text
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage.files import last_records
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.parallel.ranks.process_group import first_says
from nemo_vfm.train.lightning import steps
from nemo_vfm.train.lightning.best import FINAL
from nemo_vfm.train.lightning.checkpoint_values import PlainHyperparameters
from nemo_vfm.train.lightning.fit_settings import FitArguments, LightningStrategy, TrainerOptions
from nemo_vfm.train.lightning.metrics import FILE, OtherRanksLogger, RecordLoss, RunMetrics, numbers
from nemo_vfm.train.lightning.not_finite import StopAtNaN
from nemo_vfm.train.lightning.plugins import OwnCheckpoints, RunEnvironment, silence_warnings
from nemo_vfm.train.lightning.resume import PROMISE, ExactResume, SaveAndStop, latest_checkpoint, seed_all
from nemo_vfm.train.lightning.start_weights import begin_with
from nemo_vfm.train.loggers.guard import logger_of

T = TypeVar("T")


class LightningBar(Callback):
    """A bar over the optimizer steps."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the bar up."""
        self._shown = steps.completed_steps(trainer)
        total = steps.total(trainer, self._shown)
        self._bar = self._stack.enter_context(log.bar("training", total, completed=self._shown, unit="steps"))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        """Move it on."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        reached = steps.steps_at_batch_end(trainer)
        self._bar.advance(reached - self._shown, "" if loss is None else f"loss {float(loss):.4f}")
        self._shown = reached

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Take it down, also before an error is shown."""
        self._stack.close()

    on_exception = on_train_end  # type: ignore[assignment]


class RememberingTrainer(Trainer):
    """Lightning's; it remembers who wished for the end, by looking at who sets `should_stop`."""

    _ended_by: object = None
    _stops = False

    @property
    def should_stop(self) -> bool:
        """Whether the training is to end after this step."""
        return self._stops

    @should_stop.setter
    def should_stop(self, stops: bool) -> None:
        who = sys._getframe(1).f_locals.get("self") if stops and not self._stops else self._ended_by
        self._stops, self._ended_by = bool(stops), who if stops else None

    def ending(self, callbacks: Mapping[str, Callback]) -> str:
        """Who ended the training before its length; empty where nobody did."""
        steps, epochs = self.max_steps, -1 if self.max_epochs is None else self.max_epochs
        if not self._stops or 0 <= steps <= self.global_step or 0 <= epochs <= self.current_epoch:
            return ""
        kind = type(self._ended_by).__name__
        names = [f"callbacks.{name}, {kind}" for name, one in callbacks.items() if one is self._ended_by]
        return f" (ended early by {(names or [kind])[0]})" if self._ended_by is not None else " (ended early)"


def train(job: FitArguments, run: Run) -> Outcome:
    """See `LightningFit.run`."""
    run.folder.mkdir(parents=True, exist_ok=True)
    silence_warnings()
    seed_all(derive(run.seed, "initial weights") if job.initial_seed is None else job.initial_seed)
    module = _require_kind("module", job.module(), LightningModule)
    if job.optimizer is not None:
        _replace_optimizer(module, job.optimizer, job.lr_scheduler)
    data = None if job.data is None else _require_kind("data", job.data(), LightningDataModule)
    callbacks = {name: _require_kind(f"callbacks.{name}", make(), Callback) for name, make in job.callbacks.items()}
    found = latest_checkpoint(run.folder)
    trainer = _trainer(job, run, list(callbacks.values()), resumes=found is not None)
    if found is not None:
        log.info(f"resuming from {found}")
    elif job.start_from is not None:
        begin_with(job.start_from, module)
    with preemption.handle_signals(PROMISE):
        trainer.fit(module, datamodule=data, ckpt_path=None if found is None else str(found))
    done = steps.completed_steps(trainer)
    written = list(last_records(run.folder / FILE))
    # Of the last step that has one; none where it is not finite.
    last = next((one for one in written if "loss" in one or "loss" in (one.get(NOT_FINITE) or ())), {})
    last_loss = numbers({"loss": last["loss"]}) if "loss" in last else {}
    figures = {**numbers(trainer.callback_metrics), **last_loss, "steps": float(done)}
    lost = not_finite_text(not_finite_since(written))
    checkpoints = run.folder / "checkpoints"
    final = f"; weights that changed at the end are in {FINAL}" if (checkpoints / FINAL).exists() else ""
    return Outcome(f"trained {done} steps{trainer.ending(callbacks)}; {f'{lost}; ' if lost else ''}"
                   f"checkpoints in {checkpoints}{final}", figures)  # fmt: skip


def _replace_optimizer(
    module: LightningModule, optimizer: Factory[[Iterable[Parameter]], Optimizer],
    lr_scheduler: Factory[[Optimizer], LRScheduler] | None,
) -> None:  # fmt: skip
    """Let the recipe's optimizer and schedule stand for what the module would configure, as LightningCLI does."""

    def configure_optimizers(self: LightningModule) -> Any:
        made = optimizer(self.parameters())
        if lr_scheduler is None:
            return made
        scheduler = lr_scheduler(made)
        monitor = {"monitor": scheduler.monitor} if hasattr(scheduler, "monitor") else {}
        return {"optimizer": made, "lr_scheduler": {"scheduler": scheduler, **monitor}}

    module.configure_optimizers = MethodType(configure_optimizers, module)  # type: ignore[method-assign]


def _require_kind(name: str, made: object, kind: type[T]) -> T:
    if not isinstance(made, kind):
        raise UserError(f"{name}: {type(made).__name__} is no {kind.__module__}.{kind.__qualname__} (classes of the "
                        f"package pytorch_lightning are different: import from lightning.pytorch)")  # fmt: skip
    return made


def _trainer(job: FitArguments, run: Run, callbacks: list[Callback], *, resumes: bool) -> RememberingTrainer:
    for one in callbacks:
        if isinstance(one, ModelCheckpoint) and one.dirpath is None:  # else a folder below that of a logger
            one.dirpath = str(run.folder / "checkpoints")
    has_bar = any(isinstance(one, ProgressBar) for one in callbacks)
    exact = ExactResume(run.seed, resumes=resumes)
    all_callbacks = [
        exact, RecordLoss(run.folder), *callbacks, PlainHyperparameters(),
        *([StopAtNaN(run.folder / FILE)] if job.on_nan == "stop" else []),
        SaveAndStop(run.folder, job.every_steps, job.keep_last, exact, job.keep_best),
        *([] if has_bar or job.trainer.enable_progress_bar is False else [LightningBar()]),
    ]  # fmt: skip
    # Loggers are in the same places on every rank, but only the first rank opens those of the recipe.
    theirs = [logger_of(name, one, run.folder) for name, one in job.loggers.items()] if ranks.is_first() else []
    folders = json.loads(first_says(json.dumps([getattr(one, "log_dir", None) or one.save_dir for one in theirs],
                                               default=str)))  # fmt: skip
    others = [] if ranks.is_first() else [OtherRanksLogger(one) for one in folders]
    accelerator, devices = job.placement.for_trainer()
    return RememberingTrainer(
        **options(job.trainer, has_bar=has_bar), accelerator=accelerator, devices=devices,
        num_nodes=job.placement.num_nodes, strategy=strategy_of(job.strategy), callbacks=all_callbacks,
        logger=[*theirs, *others, RunMetrics(run.folder)], default_root_dir=run.folder,
        plugins=[RunEnvironment(job.placement.per_node()), OwnCheckpoints(run.folder)],
    )  # fmt: skip


def options(trainer: TrainerOptions, *, has_bar: bool) -> dict[str, Any]:
    """The arguments of the Trainer that a recipe says. Our bar is no bar to Lightning."""
    given: dict[str, Any] = {"enable_model_summary": False, **trainer.as_kwargs()}
    given["enable_progress_bar"] = has_bar and given.get("enable_progress_bar", True)
    if unknown := given.keys() - signature(Trainer).parameters.keys():
        raise UserError(f"the Trainer of Lightning {lightning.__version__} has no {' and '.join(sorted(unknown))}")
    return given


def strategy_of(strategy: str | Factory[[], LightningStrategy]) -> str | Strategy:
    """What the Trainer takes."""
    return strategy if isinstance(strategy, str) else _require_kind("strategy", strategy(), Strategy)  # type: ignore[type-abstract]
