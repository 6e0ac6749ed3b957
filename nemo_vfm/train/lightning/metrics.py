"""Writes what a Lightning module logs to metrics.jsonl, whose curves the report draws."""

import json
import math
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from nemo_vfm.core import preemption, progress, ranks
from nemo_vfm.core.metric_names import NOT_FINITE
from nemo_vfm.core.secret import conceal_names
from nemo_vfm.core.storage.files import drop_steps_after
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.train.lightning import steps
from nemo_vfm.train.lightning.run_experiment import RunExperiment

FILE = "metrics.jsonl"


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those that are single and finite; JSON has no other."""
    return {name: value for name, value in _scalars(metrics).items() if math.isfinite(value)}


def _scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    plain = {name: value.detach() if isinstance(value, Tensor) else value for name, value in metrics.items()}
    return {name: float(value) for name, value in plain.items() if getattr(value, "numel", lambda: 1)() == 1}


class _MetricsFile:
    """The file, of which rank 0 writes lines; the report takes the lines of one step together."""

    def __init__(self, folder: WritePath) -> None:
        self.path, self._began = folder / FILE, time.monotonic()

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        if (single := conceal_names(_scalars(metrics))) and ranks.is_first():
            found: dict[str, Json] = numbers(single)
            if lost := sorted(single.keys() - found.keys()):
                found[NOT_FINITE] = lost
            line = {**found, "step": step, "time_s": round(time.monotonic() - self._began, 4)}
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


class RunMetrics(Logger):
    """Takes all that is logged, by whom and when ever.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: WritePath) -> None:
        super().__init__()
        self._lines, self._folder = _MetricsFile(folder), folder
        self._experiment = (
            RunExperiment(folder, lambda metrics: self.log_metrics(metrics))
            if ranks.is_first()
            else DummyLogger().experiment
        )
        #: Lines are of this one, counted from 1; None before the run begins.
        self.step: int | None = None
        self._early: list[Mapping[str, float]] = []

    @property
    def name(self) -> str:
        """As little as a logger may say."""
        return "nemo_vfm"

    @property
    def experiment(self) -> Any:
        """What takes pictures; on other ranks than the first, what takes any call and does nothing."""
        return self._experiment

    @property
    def save_dir(self) -> str:
        """The run folder; it is `trainer.log_dir`, too."""
        return str(self._folder)

    log_dir = save_dir  # as modules ask TensorBoard's logger for it

    @property
    def version(self) -> None:
        """Runs are told apart by their folders."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """A line of the step that is being taken, whatever number comes with it: some are of epochs or validations."""
        if self.step is None:
            self._early.append(metrics)
        else:
            self._lines.add(self.step, metrics)

    def begin(self) -> None:
        """The run begins: write what was logged before. Where it resumes, its first process has."""
        self.step = 1
        for metrics in self._early:
            self._lines.add(1, metrics)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the recipe is in the folder."""


class OtherRanksLogger(DummyLogger):
    """Stands in the place of a logger that only the first rank has, and knows its folder.

    Args:
        log_dir: of the first rank's logger; None where it has none.
    """

    def __init__(self, log_dir: str | None) -> None:
        super().__init__()
        self._log_dir = log_dir

    @property
    def log_dir(self) -> str | None:
        """A module may make a path of it."""
        return self._log_dir

    save_dir = log_dir


class RecordLoss(Callback):
    """Writes the loss of every step, which a module need not log, and tells how far the run is.

    It stands before all other callbacks, which may log.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: WritePath) -> None:
        self._lines = _MetricsFile(folder)
        self._losses: list[float] = []

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning has put handlers of its own over ours, which end a run at once."""
        preemption.listen_again()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the lines of steps that will be taken again."""
        preemption.listen_again()
        if ranks.is_first():
            drop_steps_after(self._lines.path, steps.completed_steps(trainer))
        for one in _of_run(trainer) if steps.completed_steps(trainer) == 0 else ():
            one.begin()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """What is logged from here on comes behind the checkpoint."""
        for one in _of_run(trainer):
            one.step = steps.completed_steps(trainer) + 1

    on_train_batch_start = on_train_epoch_start  # type: ignore[assignment]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a line where the batch ends a step; Lightning has divided the loss by the number of batches of one."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self._losses += [] if loss is None else [float(loss) * trainer.accumulate_grad_batches]
        if trainer.fit_loop._should_accumulate():
            return
        step = steps.steps_at_batch_end(trainer)
        if self._losses:
            self._lines.add(step, {"loss": sum(self._losses) / len(self._losses)})
        self._losses.clear()
        progress.step(step, steps.total(trainer, step))


def _of_run(trainer: Trainer) -> list[RunMetrics]:
    return [one for one in trainer.loggers if isinstance(one, RunMetrics)]
