"""Declares engines, which build a model under a plan and give what runs its steps.

Every engine gives the numbers of a single device.
"""

from typing import TYPE_CHECKING, Literal, Protocol, get_args, runtime_checkable

from torch import nn

from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import DevicePlan
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Optimizers

if TYPE_CHECKING:
    from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner


@runtime_checkable
class Engine(Protocol):
    """Builds what trains a model, on one device or on many."""

    def start(self, parts: "EngineInputs") -> "StepRunner":
        """Build model and updaters on the device(s)."""
        ...

    def name(self) -> str:
        """Torch or megatron: a launcher chooses an image by it."""
        ...

    def plan_for(
        self, num_gpus: int, plan: ParallelPlan, model: Factory[[], nn.Module], optimizer: Optimizers
    ) -> DevicePlan:
        """What this engine would do with so many GPUs; asked before `start`, on any machine."""
        ...

    def objection(self, plan: ParallelPlan, precision: Precision) -> str:
        """Why it cannot carry a plan out, asked before anything is imported; empty where it can."""
        ...


Recompute = Literal["none", "blocks"]
Init = Literal["auto", "generator", "counter"]


def require_settings(clip_norm: float | None, recompute: str, init: str) -> None:
    """ValueError where an engine's arguments make no sense."""
    if clip_norm is not None and clip_norm <= 0:
        raise ValueError(f"clip_norm must be above zero, got {clip_norm}; set null to switch clipping off")
    if recompute not in ("none", "blocks"):
        raise ValueError(f"recompute must be none or blocks, got {recompute!r}")
    if init not in get_args(Init):
        raise ValueError(f"init must be one of {', '.join(get_args(Init))}, got {init!r}")
