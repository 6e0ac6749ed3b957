"""Declares the engine, which builds a model under a plan and gives what runs its optimizer steps.

Every engine gives the numbers of a single device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import DevicePlan
from nemo_vfm.core.types.task import Task
from nemo_vfm.parallel.apply.adapter_split import is_adapter
from nemo_vfm.parallel.apply.apply_parallelism import Drawn
from nemo_vfm.parallel.apply.local_shard import copy_own
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import OptimizerFactory
from nemo_vfm.parallel.plan.static_memory import Params as Params  # part of what an engine is given

if TYPE_CHECKING:
    from nemo_vfm.parallel.engine.step_runner import StepRunner

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


@runtime_checkable
class Engine(Protocol):
    """Builds what trains a model, on one device or on many."""

    def start(self, parts: EngineInputs) -> "StepRunner":
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


def build_model(factory: Factory[[], nn.Module], seed: int) -> nn.Module:
    """A model whose initial weights are a function of `seed` alone, whatever was drawn before.

    On the meta device, too: embedding tables keep the seed and draw their rows when they get memory.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial weights"))
        return factory()


def build_unfilled(factory: Factory[[], nn.Module], seed: int) -> tuple[nn.Module, bool]:
    """The model, and whether it is on the meta device, as it is where it may be too large for one device.

    A model that brings weights of its own keeps them.
    """
    with torch.device("meta"):
        model = build_model(factory, seed)
    if isinstance(model, Drawn) and not list(model.buffers()) and all(one.is_meta for one in model.parameters()):
        return model, True
    return build_model(factory, seed), False


def require_same_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of another model, with the differences as text.

    Raises:
        CorruptCheckpoint: names or shapes differ.
    """
    missing, surplus = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    common = sorted(own.keys() & weights.keys())
    shapes = [
        f"{n} {tuple(weights[n].shape)}, here {tuple(own[n].shape)}" for n in common if weights[n].shape != own[n].shape
    ]
    kinds = {"missing": missing, "unknown": surplus, "other shape": shapes}
    differences = [f"{kind}: {_some(names)}" for kind, names in kinds.items() if names]
    if surplus and not any(map(is_adapter, own)) and all(map(is_adapter, surplus)):
        raise CorruptCheckpoint("The checkpoint holds only adapters, as saved by training adapters. Load the model "
                                "that they were trained on, and the adapters beside it: write them with nemo-vfm "
                                "convert RUN FOLDER --adapter ours, and name the folder in adapters.NAME.path."
                                )  # fmt: skip
    if differences:
        raise CorruptCheckpoint(
            f"The checkpoint is from another model ({'; '.join(differences)}). Use the recipe that trained it."
        )


def load_weights_into(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Strict loading of whole weights, of which a model that is spread over ranks takes its part.

    Raises:
        CorruptCheckpoint: names or shapes differ.
    """
    own = model.state_dict()
    require_same_weights(own, weights)
    for name, tensor in own.items():
        copy_own(tensor, weights[name])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
