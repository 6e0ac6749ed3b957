"""Says what a Lightning training is given: the Trainer's options, weights to begin with, and what its parts must be."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.training_data import LightningData
from nemo_vfm.train.callbacks.callback import LightningCallback
from nemo_vfm.train.lightning.best import KeepBest
from nemo_vfm.train.lightning.devices import Placement
from nemo_vfm.train.state.slots import LightningLogger, LoggerSource

Precision = Literal[
    "32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true", "transformer-engine",
    "transformer-engine-float16", 16, 32, 64, "16", "32", "64", "bf16",
]  # fmt: skip


@runtime_checkable
class LightningModule(Protocol):
    """A `lightning.pytorch.LightningModule`, of which it has these methods. It is imported when a run begins."""

    def configure_optimizers(self) -> Json:
        """Of the module's own choice."""
        ...

    def lr_schedulers(self) -> Json:
        """Those of the Trainer."""
        ...

    def manual_backward(self, loss: Tensor) -> None:
        """As the strategy wants it."""
        ...


@runtime_checkable
class LightningStrategy(Protocol):
    """A `lightning.pytorch.strategies.Strategy`."""

    def setup_environment(self) -> None:
        """Meet the other ranks."""
        ...

    def model_to_device(self) -> None:
        """Place the module."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """Arguments of Lightning's Trainer, under its own names; None leaves one as Lightning has it.

    Args:
        max_epochs: length of the whole run; -1 or None where max_steps or max_time ends it.
        min_epochs: that run even if a callback asks to stop.
        max_steps: optimizer steps after which it ends.
        min_steps: that run even if a callback asks to stop.
        max_time: after which it ends, such as "00:12:00:00" (days, hours, minutes, seconds) or {hours: 12}.
        fast_dev_run: number of batches of everything, to try the code; true is one.
        limit_train_batches: of an epoch: a number, or a share of them.
        limit_val_batches: of a validation: a number, or a share of them.
        limit_test_batches: of a test: a number, or a share of them.
        limit_predict_batches: of a prediction: a number, or a share of them.
        overfit_batches: train and validate on this number or share of batches.
        val_check_interval: validate after this number of batches, this share of an epoch, or a time as in max_time.
        check_val_every_n_epoch: validate once every N epochs; None counts batches over epochs.
        num_sanity_val_steps: batches that are validated before the training.
        log_every_n_steps: how often loggers get what the module logs.
        accumulate_grad_batches: batches for one optimizer step.
        gradient_clip_val: what gradients are clipped to.
        gradient_clip_algorithm: whether by their norm or value by value.
        precision: of the arithmetic, in Lightning's words.
        deterministic: whether torch must take deterministic algorithms, or warn.
        benchmark: let cuDNN try its algorithms.
        inference_mode: validate without what autograd needs.
        use_distributed_sampler: let Lightning give each rank its share of a loader.
        sync_batchnorm: share the statistics of batch norms among ranks.
        detect_anomaly: find the operation that gave a NaN.
        reload_dataloaders_every_n_epochs: ask for the loaders again.
        enable_progress_bar: false shows none.
        enable_model_summary: print the module's layers at the start; None is false.
        enable_autolog_hparams: give loggers what the module kept by save_hyperparameters.
        profiler: what measures Lightning's hooks, in Lightning's words.

    Raises:
        ValueError: a number that no training can have.
    """

    #: Arguments of the Trainer that are no options, and why.
    REFUSED_ARGUMENTS: ClassVar[Mapping[str, str]] = {
        "accelerator": "it belongs beside trainer, where the launcher reads it: accelerator=gpu",
        "barebones": "it turns off checkpoints, metrics and callbacks, which a run folder needs",
        "callbacks": "they belong beside trainer, by name: callbacks: {early: {_target_: ...}}",
        "default_root_dir": "that is the run folder: run_dir=DIR",
        "devices": "they belong beside trainer, where the launcher reads them: devices=2",
        "enable_checkpointing": "there are always checkpoints; every_steps and keep_last beside trainer define which",
        "logger": "they belong beside trainer, by name: loggers=tensorboard",
        "model_registry": "it sends checkpoints to a service",
        "num_nodes": "it belongs beside trainer, where the launcher reads it: num_nodes=2",
        "plugins": "they define how ranks meet and how checkpoints are read, which the run decides; precision and "
        "sync_batchnorm are options, and strategy beside trainer takes a component",
        "strategy": "it belongs beside trainer, as a name or a component: strategy=ddp",
    }

    max_epochs: int | None = None
    min_epochs: int | None = None
    max_steps: int | None = None
    min_steps: int | None = None
    max_time: str | Mapping[str, int] | None = None
    fast_dev_run: bool | int | None = None
    limit_train_batches: int | float | None = None
    limit_val_batches: int | float | None = None
    limit_test_batches: int | float | None = None
    limit_predict_batches: int | float | None = None
    overfit_batches: int | float | None = None
    val_check_interval: int | float | str | Mapping[str, int] | None = None
    check_val_every_n_epoch: int | None = 1
    num_sanity_val_steps: int | None = None
    log_every_n_steps: int | None = None
    accumulate_grad_batches: int | None = None
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: Literal["norm", "value"] | None = None
    precision: Precision | None = None
    deterministic: bool | Literal["warn"] | None = None
    benchmark: bool | None = None
    inference_mode: bool | None = None
    use_distributed_sampler: bool | None = None
    sync_batchnorm: bool | None = None
    detect_anomaly: bool | None = None
    reload_dataloaders_every_n_epochs: int | None = None
    enable_progress_bar: bool | None = None
    enable_model_summary: bool | None = None
    enable_autolog_hparams: bool | None = None
    profiler: Literal["simple", "advanced", "pytorch"] | None = None

    def __post_init__(self) -> None:
        require_between(-1, inf, max_epochs=self.max_epochs, max_steps=self.max_steps,
                        num_sanity_val_steps=self.num_sanity_val_steps)  # fmt: skip
        interval = self.val_check_interval if isinstance(self.val_check_interval, int | float) else None
        require_between(0, inf, min_epochs=self.min_epochs, min_steps=self.min_steps, fast_dev_run=self.fast_dev_run,
                        limit_train_batches=self.limit_train_batches, limit_val_batches=self.limit_val_batches,
                        limit_test_batches=self.limit_test_batches, val_check_interval=interval,
                        limit_predict_batches=self.limit_predict_batches, overfit_batches=self.overfit_batches,
                        log_every_n_steps=self.log_every_n_steps, gradient_clip_val=self.gradient_clip_val,
                        reload_dataloaders_every_n_epochs=self.reload_dataloaders_every_n_epochs)  # fmt: skip
        require_between(1, inf, accumulate_grad_batches=self.accumulate_grad_batches,
                        check_val_every_n_epoch=self.check_val_every_n_epoch)  # fmt: skip

    def as_kwargs(self) -> dict[str, Json]:
        """Those that the Trainer is called with."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {k: v for k, v in values.items() if v is not None or k == "check_val_every_n_epoch"}


class StartWeights:
    """Weights that a training begins with: of a `.ckpt` or another file of torch.save, of safetensors, or of a run.

    Args:
        path: a file, or the folder of a run of `LightningFit`, of which the best checkpoint is taken, else the last.
        may_differ: names of weights, or what they begin with up to a dot, that may be absent there, unknown here or of
            another shape; those keep the values that the seed gives them. Everything else must fit.
        key: where in a file the weights are; None finds the usual places, such as state_dict.
    """

    def __init__(self, *, path: Path, may_differ: Sequence[str] = (), key: str | None = None) -> None:
        self.path, self.may_differ, self.key = path, tuple(may_differ), key


class FitArguments(Protocol):
    """What `LightningFit` keeps of its arguments, under the same names."""

    module: Factory[[], LightningModule]
    data: Factory[[], LightningData] | None
    trainer: TrainerOptions
    strategy: str | Factory[[], LightningStrategy]
    placement: Placement
    callbacks: dict[str, Factory[[], LightningCallback]]
    loggers: dict[str, LoggerSource | LightningLogger]
    every_steps: int
    keep_last: int
    keep_best: KeepBest | None
    start_from: StartWeights | None
    optimizer: Factory[[Iterable[Parameter]], Optimizer] | None
    lr_scheduler: Factory[[Optimizer], LRScheduler] | None
    initial_seed: int | None
    on_nan: Literal["stop", "continue"]


class Evaluation(Protocol):
    """What `LightningTest`, `LightningValidate` and `LightningPredict` keep of their arguments."""

    kind: ClassVar[Literal["test", "validate", "predict"]]
    module: Factory[[], LightningModule]
    data: Factory[[], LightningData] | None
    ckpt: Literal["best", "last"] | Path | None
    trained: Path | None
    trainer: TrainerOptions | None
    strategy: str | Factory[[], LightningStrategy]
    callbacks: dict[str, Factory[[], LightningCallback]]
    placement: Placement
