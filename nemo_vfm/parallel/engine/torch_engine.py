"""Builds a model and its updaters on one device or on many under a plan, by PyTorch's own parallelism."""

from typing import TYPE_CHECKING, Literal

from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import DevicePlan
from nemo_vfm.parallel.engine.engine import Init, Recompute, require_settings
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Optimizers

if TYPE_CHECKING:
    from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner


class TorchEngine:
    """DTensor, FSDP2 and our own context parallel under one plan; alone on one device it is plain PyTorch.

    Args:
        clip_norm: the gradient's global L2 norm is scaled down to this; None leaves it.
        clip: of a model with embedding tables, whether rows' gradients count and are scaled, too (all), or only those
            of the other weights (dense); the reported norm is of the same ones.
        recompute: blocks runs each block again in backward instead of keeping its activations; none keeps them.
        offload_optimizer: keep the optimizer's state in host memory.
        compile: compile each block with torch.compile.
        init: how first weights are drawn: generator one after another on the CPU, counter all at once on the device,
            equal on every device and layout; auto is counter for models of more than 100 million parameters. A model
            that brings weights of its own keeps them.
        nonfinite: what becomes of a step whose loss or gradient is not a number.
    """

    def __init__(
        self, *, clip_norm: float | None = 1.0, recompute: Recompute = "none",
        offload_optimizer: bool = False, compile: bool = False, init: Init = "auto",
        nonfinite: NonFinite = NonFinite(), clip: Literal["all", "dense"] = "all",
    ) -> None:  # fmt: skip
        require_settings(clip_norm, recompute, init)
        if clip not in ("all", "dense"):
            raise ValueError(f"clip must be all or dense, got {clip!r}")
        self.clip_norm, self.recompute, self.nonfinite = clip_norm, recompute, nonfinite
        self.clip, self.offload_optimizer, self.compile, self.init = clip, offload_optimizer, compile, init

    def name(self) -> str:
        """See `Engine`."""
        return "torch"

    def plan_for(
        self, num_gpus: int, plan: ParallelPlan, model: Factory[[], nn.Module], optimizer: Optimizers
    ) -> DevicePlan:
        """How the plan uses a number of GPUs, and the memory that each needs."""
        from nemo_vfm.parallel.engine.model_start import plan_notes
        from nemo_vfm.parallel.plan.static_memory import state_of

        notes = plan_notes(num_gpus, plan, model)
        if why := self.objection(plan, Precision()):
            notes.append(f"it would not start: {why}")
        count, state_bytes = state_of(model, optimizer, plan)
        if self.offload_optimizer:
            notes.append(f"the optimizer's {state_bytes.pop('optimizer') / 1e9:.2f} GB for each GPU are in host memory")
        if plan.pipeline > 1 and plan.shard * plan.context > 1:
            notes.append("through a step each GPU also holds the weights of its stages, gathered over shard x context")
        return DevicePlan(min(plan.world, num_gpus), count, state_bytes, tuple(notes))

    def objection(self, plan: ParallelPlan, precision: Precision) -> str:
        """See `Engine`."""
        zero_bubble = plan.schedule == "zero_bubble" and plan.pipeline > 1
        if self.compile and zero_bubble:
            return ("The zero_bubble schedule splits the backward pass of each linear layer, but engine.compile "
                    "fuses a block; use parallel.schedule: interleaved, or engine.compile: false.")  # fmt: skip
        if precision.fp8 is None or precision.fp8.kernels == "torch" or not (self.compile or zero_bubble):
            return ""
        return ("engine.compile cannot trace Transformer Engine's kernels, and the zero_bubble schedule uses twice "
                "what they store; use precision.fp8.kernels: torch, or neither of the two.")  # fmt: skip

    def start(self, parts: "EngineInputs") -> "StepRunner":
        """Meet the other ranks, build this rank's part of the model from the seed, and what updates it.

        Raises:
            UserError: the plan does not fit the engine, the model or the number of ranks.
        """
        if why := self.objection(parts.plan, parts.precision):
            raise UserError(why)
        from nemo_vfm.parallel.engine.torch_start import start

        return start(
            parts, clip_norm=self.clip_norm, clip=self.clip, recompute=self.recompute, init=self.init,
            offload_optimizer=self.offload_optimizer, compile=self.compile, nonfinite=self.nonfinite,
        )  # fmt: skip
