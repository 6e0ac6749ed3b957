"""Declares the engine, which builds a model under a plan and gives what runs its optimizer steps.

Every engine gives the numbers of a single device.
"""

from typing import Protocol, runtime_checkable

from torch import nn

from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import DevicePlan
from nemo_vfm.parallel.engine.engine_inputs import EngineInputs
from nemo_vfm.parallel.engine.step_runner import StepRunner
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import OptimizerFactory
from nemo_vfm.parallel.plan.static_memory import Params as Params  # part of what an engine is given


@runtime_checkable
class Engine(Protocol):
    """Builds what trains a model, on one device or on many."""

    def start(self, parts: EngineInputs) -> StepRunner:
        """Build model and updaters on the device(s)."""
        ...

    def name(self) -> str:
        """Torch or megatron: a launcher chooses an image by it."""
        ...

    def plan_for(
        self, num_gpus: int, plan: ParallelPlan, model: Factory[[], nn.Module], optimizer: OptimizerFactory
    ) -> DevicePlan:
        """What this engine would do with so many GPUs; asked before `start`, on any machine."""
        ...


@runtime_checkable
class ObjectsToPlans(Protocol):
    """An engine that cannot carry out every plan."""

    def objection(self, plan: ParallelPlan, precision: Precision) -> str:
        """Why it cannot, asked before anything is imported; empty where it can."""
        ...
