# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Carries a `LightningFit` out: makes its parts, sets Lightning's Trainer up in the run folder, and trains."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy

from nemo_vfm.core import log, preemption, ranks
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.metric_names import NOT_FINITE, not_finite_since, not_finite_text
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage.files import last_records
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.ranks.consensus import first_says
from nemo_vfm.train.lightning.bar import LightningBar
from nemo_vfm.train.lightning.checkpoint_values import PlainHyperparameters
from nemo_vfm.train.lightning.ended_by import RememberingTrainer
from nemo_vfm.train.lightning.metrics import FILE, OtherRanksLogger, RecordLoss, RunMetrics, numbers
from nemo_vfm.train.lightning.not_finite import StopAtNaN
from nemo_vfm.train.lightning.plugins import OwnCheckpoints, RunEnvironment, quiet
from nemo_vfm.train.lightning.resume import PROMISE, ExactResume, SaveAndStop, newest, seed_all
from nemo_vfm.train.lightning_fit import LightningFit
from nemo_vfm.train.loggers import LightningLogger, LoggerSource
from nemo_vfm.train.loggers.guard import logger_of

T = TypeVar("T")


def train(job: LightningFit, run: Run) -> Outcome:
    """See `LightningFit.run`."""
    run.folder.mkdir(parents=True, exist_ok=True)
    quiet()
    seed_all(derive(run.seed, "initial weights"))
    module = _made("module", job.module(), LightningModule)
    data = None if job.data is None else _made("data", job.data(), LightningDataModule)
    callbacks = {name: _made(f"callbacks.{name}", make(), Callback) for name, make in job.callbacks.items()}
    trainer = _trainer(job, run, list(callbacks.values()))
    if (found := newest(run.folder)) is not None:
        log.info(f"resuming from {found}")
    with preemption.heeded(PROMISE):
        trainer.fit(module, datamodule=data, ckpt_path=None if found is None else str(found))
    steps = trainer.global_step
    written = list(last_records(run.folder / FILE))
    figures = {**numbers(trainer.callback_metrics), **_last_loss(written), "steps": float(steps)}
    lost = not_finite_text(not_finite_since(written))
    return Outcome(f"trained {steps} steps{trainer.ending(callbacks)}; {f'{lost}; ' if lost else ''}"
                   f"checkpoints in {run.folder / 'checkpoints'}", figures)  # fmt: skip


def _last_loss(records: Sequence[Mapping[str, Json]]) -> dict[str, float]:
    """Of the last step that has one; none where it is not finite."""
    last = next((one for one in records if "loss" in one or "loss" in (one.get(NOT_FINITE) or ())), {})
    return numbers({"loss": last["loss"]}) if "loss" in last else {}


def _made(name: str, made: object, kind: type[T]) -> T:
    if not isinstance(made, kind):
        raise UserError(f"{name}: {type(made).__name__} is no {kind.__module__}.{kind.__qualname__} (a class of the "
                        f"package pytorch_lightning is another one: import it from lightning.pytorch)")  # fmt: skip
    return made


def _trainer(job: LightningFit, run: Run, callbacks: list[Callback]) -> RememberingTrainer:
    for one in callbacks:
        if isinstance(one, ModelCheckpoint) and one.dirpath is None:  # else a folder below that of a logger
            one.dirpath = str(run.folder / "checkpoints")
    has_bar = any(isinstance(one, ProgressBar) for one in callbacks)
    ours = [ExactResume(run.seed), RecordLoss(run.folder), PlainHyperparameters(),
            SaveAndStop(run.folder, job.every_steps, job.keep_last),
            *([StopAtNaN(run.folder / FILE)] if job.on_nan == "stop" else [])]  # fmt: skip
    on_gpu = job.accelerator == "gpu" or (job.accelerator == "auto" and device().type == "cuda")
    return RememberingTrainer(
        **job.trainer.given(), accelerator="gpu" if on_gpu else "cpu", devices=_devices(job, on_gpu=on_gpu),
        num_nodes=job.num_nodes, strategy=_strategy(job), callbacks=[*callbacks, *ours, *_bar(has_bar)],
        logger=_loggers(job.loggers, run.folder), default_root_dir=run.folder,
        plugins=[RunEnvironment(job.devices), OwnCheckpoints(run.folder)], enable_model_summary=False,
        enable_progress_bar=has_bar,
    )  # fmt: skip


def _bar(has_bar: bool) -> list[Callback]:
    return [] if has_bar else [LightningBar()]


def _strategy(job: LightningFit) -> str | Strategy:
    return job.strategy if isinstance(job.strategy, str) else _made("strategy", job.strategy(), Strategy)  # type: ignore[type-abstract]


def _devices(job: LightningFit, *, on_gpu: bool) -> int | list[int]:
    """One process alone may have been told another GPU than the first."""
    if on_gpu and device().type != "cuda":
        raise UserError("accelerator is gpu, but there is no GPU here; set accelerator=cpu")
    return [device().index or 0] if on_gpu and job.num_ranks() == 1 else job.devices


def _loggers(sources: Mapping[str, LoggerSource | LightningLogger], folder: Path) -> list[Logger]:
    """Those of the recipe and ours, in the same places on every rank; only the first rank opens those of the recipe."""
    theirs = [logger_of(name, one, folder) for name, one in sources.items()] if ranks.is_first() else []
    folders = [getattr(one, "log_dir", None) or one.save_dir for one in theirs]
    folders = json.loads(first_says(json.dumps(folders, default=str)))
    others = [] if ranks.is_first() else [OtherRanksLogger(one) for one in folders]
    return [*theirs, *others, RunMetrics(folder)]
