"""Tests, validates or predicts with a LightningModule of anybody's and the weights of a checkpoint, as a job."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar, Literal

from nemo_vfm.core.optional import needs_gpu
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.training_data import LightningData
from nemo_vfm.train.callbacks.callback import LightningCallback
from nemo_vfm.train.lightning.devices import Devices, PlacedJob, Placement, single_process
from nemo_vfm.train.lightning.fit_settings import LightningModule, LightningStrategy, TrainerOptions


class _Evaluation(PlacedJob):
    kind: ClassVar[Literal["test", "validate", "predict"]]

    def __init__(
        self, *, module: Factory[[], LightningModule], data: Factory[[], LightningData] | None = None,
        ckpt: Literal["best", "last"] | Path | None = "last", trained: Path | None = None,
        trainer: TrainerOptions | None = None, accelerator: Literal["auto", "cpu", "gpu"] = "auto",
        devices: Devices = 1, num_nodes: int = 1, strategy: str | Factory[[], LightningStrategy] = "auto",
        callbacks: Mapping[str, Factory[[], LightningCallback]] | None = None,
    ) -> None:  # fmt: skip
        if isinstance(ckpt, str) and trained is None:
            raise ValueError(f"ckpt is {ckpt}, but of which run? Give the folder of a LightningFit, such as "
                             "trained: ${run_dir}/fit, or the path of a checkpoint")  # fmt: skip
        self.module, self.data, self.ckpt, self.trained = module, data, ckpt, trained
        self.trainer, self.strategy, self.callbacks = trainer, strategy, dict(callbacks or {})
        self.placement = Placement(accelerator=accelerator, devices=devices, num_nodes=num_nodes)

    def run(self, run: Run) -> Outcome:
        """Do it once; a run that was killed begins anew."""
        from nemo_vfm.train.lightning.evaluation_run import evaluate

        with single_process() if self.placement.num_ranks() == 1 else nullcontext():
            return evaluate(self, run)


@needs_gpu({"accelerator": "auto"})
@needs_gpu({"accelerator": "gpu"})
@makes("figures.json")
class LightningTest(_Evaluation):
    """Tests a LightningModule of anybody's: its `test_step` over the test loaders. `figures.json` has the figures.

    On several ranks Lightning repeats samples so that all have as many; one rank counts each once.

    Args:
        module: builds the LightningModule, as in the training: `${steps.fit.module}`.
        data: builds the LightningDataModule; None where the module has its own loaders.
        ckpt: whose weights: those of the best or last checkpoint of `trained`, or of a file, read as `start_from` of
            `LightningFit` is; None takes those that the module makes itself.
        trained: the folder of the `LightningFit`'s run; None where `ckpt` says all.
        trainer: arguments of the Trainer, of which those of the training have no effect; None gives none.
        accelerator: what computes; auto takes a GPU where there is one.
        devices: how many of each machine, or which GPUs by number; auto and -1 take all GPUs, or one CPU process.
        num_nodes: how many machines.
        strategy: how devices share the work: a name that Lightning knows, or a component.
        callbacks: build callbacks of Lightning's, by name, in order.
    """

    kind = "test"


@needs_gpu({"accelerator": "auto"})
@needs_gpu({"accelerator": "gpu"})
@makes("figures.json")
class LightningValidate(_Evaluation):
    """Validates a LightningModule of anybody's: its `validation_step` over the validation loaders. See `LightningTest`.

    Args:
        module: see `LightningTest`.
        data: see `LightningTest`.
        ckpt: see `LightningTest`.
        trained: see `LightningTest`.
        trainer: see `LightningTest`.
        accelerator: see `LightningTest`.
        devices: see `LightningTest`.
        num_nodes: see `LightningTest`.
        strategy: see `LightningTest`.
        callbacks: see `LightningTest`.
    """

    kind = "validate"


@needs_gpu({"accelerator": "auto"})
@needs_gpu({"accelerator": "gpu"})
@makes("predictions.parquet", "figures.json")
class LightningPredict(_Evaluation):
    """Writes what `predict_step` of a LightningModule returns to `predictions.parquet`, a row a sample.

    A tensor is the column `prediction`, a mapping has a column of each key, a tuple those of `prediction_0` and so on.
    The rows have the order of the data, on any number of ranks. Several loaders write a file each.

    Args:
        module: see `LightningTest`.
        data: see `LightningTest`.
        ckpt: see `LightningTest`.
        trained: see `LightningTest`.
        trainer: see `LightningTest`.
        accelerator: see `LightningTest`.
        devices: see `LightningTest`.
        num_nodes: see `LightningTest`.
        strategy: see `LightningTest`.
        callbacks: see `LightningTest`.
    """

    kind = "predict"
