"""Runs any Lightning project in a run folder: it can be killed and resumed, and its curves are in the report."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.optional import needs_gpu
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.training_data import LightningData
from nemo_vfm.train.callbacks.callback import LightningCallback
from nemo_vfm.train.lightning.best import KeepBest
from nemo_vfm.train.lightning.devices import Devices, PlacedJob, Placement, single_process
from nemo_vfm.train.lightning.fit_settings import LightningModule, LightningStrategy, StartWeights, TrainerOptions
from nemo_vfm.train.state.slots import LightningLogger, LoggerSource


@needs_gpu({"accelerator": "auto"})
@needs_gpu({"accelerator": "gpu"})
@makes("checkpoints", "metrics.jsonl")
class LightningFit(PlacedJob):
    """Trains a LightningModule of anybody's with Lightning's Trainer.

    Lightning writes its checkpoints as pickles. Only those of the run folder are read, and nothing in them but tensors
    and plain values.

    Args:
        module: builds the LightningModule; called once, with the initial weights a function of the run's seed.
        data: builds the LightningDataModule; None where the module has its own loaders.
        start_from: weights to begin with, as the path of a checkpoint or as `StartWeights`; None takes those that the
            module has from the seed.
        trainer: arguments of the Trainer; devices, strategy, folders and checkpoints are set here.
        accelerator: what computes; auto takes a GPU where there is one.
        devices: how many of each machine, or which GPUs by number; auto and -1 take all GPUs, or one CPU process.
            `nemo-vfm run` starts a process for each.
        num_nodes: how many machines.
        strategy: how devices share the work: a name that Lightning knows, or a component.
        callbacks: build callbacks of Lightning's, by name, in order.
        loggers: where metrics go in addition to metrics.jsonl, by name: ours, or Lightning's.
        every_steps: optimizer steps between checkpoints; there is always one at the end of an epoch.
        keep_last: how many of the newest stay on disk.
        keep_best: the metric by which one more stays, which `checkpoints/best.ckpt` leads to; None keeps none.
        optimizer: builds the one that is used instead of the module's own; None leaves it to the module.
        lr_scheduler: builds the schedule of that optimizer, which advances with each epoch; where it has a `monitor`,
            by that metric. None keeps the learning rate.
        initial_seed: what the module and its data are made from, as Lightning's `seed_everything` would do it; None
            takes a number that follows from the seed.
        on_nan: what becomes of a run whose loss is NaN or infinite in eight batches in a row: it ends as failed, or
            continues. Either way a message names the first such step.
    """

    def __init__(
        self, *, module: Factory[[], LightningModule], data: Factory[[], LightningData] | None = None,
        trainer: TrainerOptions, accelerator: Literal["auto", "cpu", "gpu"] = "auto", devices: Devices = 1,
        num_nodes: int = 1, strategy: str | Factory[[], LightningStrategy] = "auto",
        callbacks: Mapping[str, Factory[[], LightningCallback]] | None = None,
        loggers: Mapping[str, LoggerSource | LightningLogger] | None = None, every_steps: int = 1000,
        keep_last: int = 2, keep_best: KeepBest | None = None, start_from: Path | StartWeights | None = None,
        optimizer: Factory[[Iterable[Parameter]], Optimizer] | None = None,
        lr_scheduler: Factory[[Optimizer], LRScheduler] | None = None, initial_seed: int | None = None,
        on_nan: Literal["stop", "continue"] = "stop",
    ) -> None:  # fmt: skip
        if every_steps < 1 or keep_last < 1:
            raise ValueError(f"every_steps ({every_steps}) and keep_last ({keep_last}) must be at least 1")
        if lr_scheduler is not None and optimizer is None:
            raise ValueError("lr_scheduler needs the optimizer beside it, but there is none: give optimizer")
        require_between(0, 2**32 - 1, initial_seed=initial_seed)
        is_endless = trainer.max_epochs is None and trainer.max_steps in (None, -1) and trainer.max_time is None
        if is_endless and not trainer.fast_dev_run:  # Lightning would take a thousand epochs
            raise ValueError("trainer has no length: give max_epochs, max_steps or max_time")
        self.module, self.data, self.trainer, self.strategy = module, data, trainer, strategy
        self.optimizer, self.lr_scheduler, self.initial_seed = optimizer, lr_scheduler, initial_seed
        self.placement = Placement(accelerator=accelerator, devices=devices, num_nodes=num_nodes)
        self.start_from = StartWeights(path=start_from) if isinstance(start_from, Path) else start_from
        self.callbacks, self.loggers = dict(callbacks or {}), dict(loggers or {})
        self.every_steps, self.keep_last, self.keep_best = every_steps, keep_last, keep_best
        self.on_nan: Literal["stop", "continue"] = on_nan

    def run(self, run: Run) -> Outcome:
        """Train; resume from the newest checkpoint where the folder has one."""
        from nemo_vfm.train.lightning.fit import train

        with single_process() if self.placement.num_ranks() == 1 else nullcontext():
            return train(self, run)
