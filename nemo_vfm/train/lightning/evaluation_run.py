"""Carries a test, a validation or a prediction of a LightningModule out, and writes its figures."""

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from nemo_vfm.core import log, preemption, progress, ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.secret import conceal_names
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.train.lightning.best import find_checkpoint
from nemo_vfm.train.lightning.fit import _require_kind, options, strategy_of
from nemo_vfm.train.lightning.fit_settings import Evaluation, StartWeights, TrainerOptions
from nemo_vfm.train.lightning.metrics import RunMetrics, numbers
from nemo_vfm.train.lightning.plugins import OwnCheckpoints, RunEnvironment, silence_warnings
from nemo_vfm.train.lightning.prediction_files import PredictionFiles
from nemo_vfm.train.lightning.resume import seed_all
from nemo_vfm.train.lightning.start_weights import begin_with

#: Holds the figures, what was measured and with which weights.
FILE = "figures.json"
_DONE = {"test": "tested", "validate": "validated", "predict": "predicted"}


def evaluate(job: Evaluation, run: Run) -> Outcome:
    """See `LightningTest`, `LightningValidate` and `LightningPredict`."""
    run.folder.mkdir(parents=True, exist_ok=True)
    silence_warnings()
    rank = ranks.rank()
    seed_all(derive(run.seed, "initial weights"))
    module = _require_kind("module", job.module(), LightningModule)
    data = None if job.data is None else _require_kind("data", job.data(), LightningDataModule)
    path = find_checkpoint(job.trained, job.ckpt) if job.trained is not None and isinstance(job.ckpt, str) else None
    if isinstance(job.ckpt, Path):
        begin_with(StartWeights(path=job.ckpt), module, "ckpt")
    seed_all(derive(run.seed, job.kind, rank))
    files = PredictionFiles(run.folder, rank, job.placement.num_ranks())
    callbacks = [_require_kind(f"callbacks.{name}", make(), Callback) for name, make in job.callbacks.items()]
    has_bar = any(isinstance(one, ProgressBar) for one in callbacks)
    accelerator, devices = job.placement.for_trainer()
    folder = run.folder if job.trained is None else job.trained
    trainer = Trainer(
        **options(job.trainer or TrainerOptions(), has_bar=has_bar), accelerator=accelerator, devices=devices,
        num_nodes=job.placement.num_nodes, strategy=strategy_of(job.strategy),
        callbacks=[*callbacks, *([files] if job.kind == "predict" else []), _Bar()],
        logger=[_Pictures(run.folder)], default_root_dir=run.folder, enable_checkpointing=False,
        plugins=[RunEnvironment(job.placement.per_node()), OwnCheckpoints(folder)],
    )  # fmt: skip
    ckpt = None if path is None else str(path)
    try:
        if job.kind == "predict":
            trainer.predict(module, datamodule=data, ckpt_path=ckpt, return_predictions=False)
            figures = {"rows": float(files.rows)}
        else:
            measure = trainer.test if job.kind == "test" else trainer.validate
            measured = measure(module, datamodule=data, ckpt_path=ckpt, verbose=False)
            figures = {name: value for one in measured for name, value in numbers(one).items()}
    except MisconfigurationException as error:
        raise UserError(str(error)) from error
    weights = str(path or job.ckpt or "the module's own weights")
    if rank == 0:
        write_json(run.folder / FILE, {"kind": job.kind, "weights": weights, "figures": conceal_names(figures)})
    return Outcome(f"{_DONE[job.kind]} with {weights}", figures)


class _Pictures(RunMetrics):
    """Takes what a module gives to its logger; figures are those that Lightning returns."""

    def log_metrics(self, *_: Any, **__: Any) -> None:
        """Nothing: metrics.jsonl would show them as a training."""


class _Bar(Callback):
    """Shows how far it is, and lets signals end it."""

    def __init__(self) -> None:
        self._stack, self._done = ExitStack(), 0

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        preemption.listen_again()  # Lightning has put handlers of its own over ours
        batches = {"test": trainer.num_test_batches, "validate": trainer.num_val_batches,
                   "predict": trainer.num_predict_batches}  # fmt: skip
        doing = str(getattr(trainer.state.fn, "value", ""))
        total = sum(batches[doing])
        self._total = int(total) if math.isfinite(total) else None
        self._bar = self._stack.enter_context(log.bar(doing, self._total, unit="batches"))

    def _advance(self, *_: Any, **__: Any) -> None:
        self._done += 1
        self._bar.advance(1, "")
        progress.step(self._done, self._total)

    def _end(self, *_: Any, **__: Any) -> None:
        self._stack.close()

    on_test_start = on_validation_start = on_predict_start = _begin
    on_test_batch_end = on_validation_batch_end = on_predict_batch_end = _advance
    on_test_end = on_validation_end = on_predict_end = on_exception = _end
