# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Carries a `LightningFit` out: makes its parts, sets Lightning's Trainer up in the run folder, and trains."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy

from nemo_vfm.core import log, preemption, ranks
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.train.lightning import steps
from nemo_vfm.train.lightning.bar import LightningBar
from nemo_vfm.train.lightning.metrics import RecordLoss, RunMetrics, numbers
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
    found = newest(run.folder)
    trainer = _trainer(job, run, resumes=found is not None)
    if found is not None:
        log.info(f"resuming from {found}")
    with preemption.heeded(PROMISE):
        trainer.fit(module, datamodule=data, ckpt_path=None if found is None else str(found))
    figures = {**numbers(trainer.callback_metrics), "steps": float(steps.done(trainer))}
    return Outcome(f"trained {steps.done(trainer)} steps; checkpoints in {run.folder / 'checkpoints'}", figures)


def _made(name: str, made: object, kind: type[T]) -> T:
    if not isinstance(made, kind):
        raise UserError(f"{name}: {type(made).__name__} is no {kind.__module__}.{kind.__qualname__} (a class of the "
                        f"package pytorch_lightning is another one: import it from lightning.pytorch)")  # fmt: skip
    return made


def _trainer(job: LightningFit, run: Run, *, resumes: bool) -> Trainer:
    callbacks = [_made(f"callbacks.{name}", make(), Callback) for name, make in job.callbacks.items()]
    for one in callbacks:
        if isinstance(one, ModelCheckpoint) and one.dirpath is None:  # else a folder below that of a logger
            one.dirpath = str(run.folder / "checkpoints")
    has_bar = any(isinstance(one, ProgressBar) for one in callbacks)
    exact = ExactResume(run.seed, resumes=resumes)
    save = SaveAndStop(run.folder, job.every_steps, job.keep_last, exact)
    all_callbacks = [exact, RecordLoss(run.folder), *callbacks, save, *_bar(has_bar)]
    on_gpu = job.accelerator == "gpu" or (job.accelerator == "auto" and device().type == "cuda")
    return Trainer(
        **job.trainer.given(), accelerator="gpu" if on_gpu else "cpu", devices=_devices(job, on_gpu=on_gpu),
        num_nodes=job.num_nodes, strategy=_strategy(job), callbacks=all_callbacks,
        logger=_loggers(job.loggers, run.folder), default_root_dir=run.folder,
        plugins=[RunEnvironment(job.devices), OwnCheckpoints(run.folder)], enable_model_summary=False,
        enable_checkpointing=any(isinstance(one, Checkpoint) for one in callbacks), enable_progress_bar=has_bar,
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
    theirs = [logger_of(name, one, folder) for name, one in sources.items()] if ranks.is_first() else []
    return [*theirs, RunMetrics(folder)]
