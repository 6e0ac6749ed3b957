"""Declares what an engine is given, and what a step of it gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.task import Task
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import OptimizerFactory

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did.

    Args:
        loss: mean over the samples of the global batch, by their weights.
        grad_norm: global L2 norm before clipping.
        lr: learning rate of the first parameter group; 0 where the step was skipped, since it is not finite.
        num_samples: samples of the global batch.
        shapes: of the model's inputs, one mapping a micro-batch, for counting arithmetic.
    """

    loss: float
    grad_norm: float
    lr: float
    num_samples: int
    shapes: list[Shapes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineInputs:
    """What an engine is given to start from."""

    model: Factory[[], nn.Module]
    task: Task
    optimizer: OptimizerFactory
    precision: Precision
    seed: int
    plan: ParallelPlan = field(default_factory=ParallelPlan)
