"""Holds what a training is made of."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from torch import nn

from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.encoders import Family
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.task import Task
from nemo_vfm.core.types.training_data import HasTableRows, LightningData, TrainingData
from nemo_vfm.parallel.engine.engine import Engine
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import OptimizerFactory
from nemo_vfm.train.callbacks.callback import Callback, LightningCallback
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.mock_data import MockData, mocked
from nemo_vfm.train.optim import Constant
from nemo_vfm.train.state.skip import NOTHING, Skip
from nemo_vfm.train.state.slots import LightningLogger, LoggerSource, Schedule
from nemo_vfm.train.warm_start import Weights

K = TypeVar("K")


class TrainParts:
    """The parts of a training, which `Train` describes, as its constructor prepares them."""

    def __init__(
        self, *, model: Factory[[], nn.Module], data: TrainingData | LightningData, task: Task,
        optimizer: OptimizerFactory | Mapping[str, OptimizerFactory], schedule: Schedule = Constant(), loop: Loop,
        weights: Weights = Weights(),
        callbacks: Mapping[str, Callback | LightningCallback | EMA | Skip] | None = None,
        loggers: Mapping[str, LoggerSource | LightningLogger] | None = None, engine: Engine = TorchEngine(),
        parallel: ParallelPlan = ParallelPlan(), precision: Precision = Precision(), base: Path | None = None,
        random_base: Family | None = None, mock_data: MockData | None = None,
    ) -> None:  # fmt: skip
        if mock_data is not None:
            data = mocked(data, mock_data, model, task)
        if not isinstance(data, TrainingData):
            from nemo_vfm.data.loader.lightning_batches import LightningBatches

            data = LightningBatches(data)
        if isinstance(optimizer, Mapping) and not optimizer:
            raise ValueError("optimizer is empty; give one, or one for each child of the model, by the child's name")
        loop.require(data, task)
        if isinstance(data, HasTableRows):
            from nemo_vfm.models.recommenders.table_choice import SizedModel

            model = SizedModel(model, data)
        self.model = weights.trained(model)
        self.data, self.task, self.optimizer, self.schedule = data, task, optimizer, schedule
        self.loop, self.weights, self.phases = loop, weights, loop.spans(data, parallel)
        self.engine, self.parallel, self.precision = engine, parallel, precision
        self.base, self.random_base = base, random_base
        given = dict(callbacks or {})
        self.ema, self.skip = _only(EMA, given), _only(Skip, given) or NOTHING
        self.callbacks = {name: one for name, one in given.items() if not isinstance(one, EMA | Skip)}
        self.loggers = dict(loggers or {})


def _only(kind: type[K], callbacks: Mapping[str, object]) -> K | None:
    """The one callback of a kind that the training itself needs, wherever it stands among the others."""
    found = {name: one for name, one in callbacks.items() if isinstance(one, kind)}
    if len(found) > 1:
        raise ValueError(f"callbacks {' and '.join(found)} are {kind.__name__}s, and a training has one")
    return next(iter(found.values()), None)
