"""Runs optimizer steps by Megatron-Core: its layers, schedule, DDP and optimizer, with the sums of one device.

Megatron-Core is imported at `start`, so a recipe is checked without it.
"""

import copy
import os
import warnings
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import MissingPackage, UserError
from nemo_vfm.core.optional import available, needs_packages, require
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import DevicePlan
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.apply.pipeline_stage import cut, stages_of
from nemo_vfm.parallel.engine.engine import Init, Recompute, require_settings
from nemo_vfm.parallel.engine.history_updater import HistoryUpdater
from nemo_vfm.parallel.engine.model_start import build_unsplit, enter_layout, plan_notes
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner
from nemo_vfm.parallel.megatron.adam_arguments import adam_arguments, one_factory
from nemo_vfm.parallel.plan.mesh import join
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Optimizers
from nemo_vfm.parallel.plan.static_memory import on_meta, state_of
from nemo_vfm.sparse.tables.fused_tables import tables_of


@needs_packages("megatron.core")
class MegatronEngine:
    """Megatron-Core 0.16 under the same plan as the other engine; `shard` shares the optimizer's state (ZeRO-1).

    Args:
        clip_norm: the gradient's global L2 norm is scaled down to this; None leaves it.
        recompute: blocks runs each block again in backward instead of keeping its activations; none keeps them.
        init: how first weights are drawn: generator one after another on the CPU, counter all at once on the device,
            equal on every device and layout; auto is counter for models of more than 100 million parameters. A model
            that brings weights of its own keeps them.
        nonfinite: what becomes of a step whose loss or gradient is not a number.
    """

    def __init__(
        self, *, clip_norm: float | None = 1.0, recompute: Recompute = "none",
        nonfinite: NonFinite = NonFinite(), init: Init = "auto",
    ) -> None:  # fmt: skip
        require_settings(clip_norm, recompute, init)
        self.clip_norm, self.recompute, self.nonfinite, self.init = clip_norm, recompute, nonfinite, init

    def name(self) -> str:
        """See `Engine`."""
        return "megatron"

    def plan_for(
        self, num_gpus: int, plan: ParallelPlan, model: Factory[[], nn.Module], optimizer: Optimizers
    ) -> DevicePlan:
        """How the plan uses a number of GPUs; unlike with FSDP, `shard` splits neither weights nor gradients."""
        notes = plan_notes(num_gpus, plan, model)
        if why := self.objection(plan, Precision()):
            notes.append(f"it would not start: {why}")
        try:
            adam_arguments(one_factory(optimizer))
            if tables_of(on_meta(model)):
                raise UserError("engine=megatron does not update embedding tables. Use engine=torch.")
        except UserError as error:
            notes.append(f"it would not start: {error}")
        count, shared = state_of(model, optimizer, plan)
        # Context ranks hold the same weights; the other engine shares them, and this one does not.
        unshared = replace(plan, shard=1, replicate=plan.replicate * plan.shard * plan.context, context=1, ulysses=1,
                           attention="ring")  # fmt: skip
        _, whole = state_of(model, optimizer, unshared)
        return DevicePlan(min(plan.world, num_gpus), count, {**whole, "optimizer": shared["optimizer"]}, tuple(notes))

    def objection(self, plan: ParallelPlan, precision: Precision) -> str:
        """See `Engine`."""
        if plan.schedule == "zero_bubble":
            return "Megatron-Core has no zero-bubble schedule. Use parallel.schedule: interleaved, or engine=torch."
        return ""

    def start(self, parts: EngineInputs) -> StepRunner:
        """Meet the other ranks, build this rank's part of the model from the seed, and the optimizer over it.

        Raises:
            UserError: the plan, the optimizer or this machine does not allow it.
        """
        if why := self.objection(parts.plan, parts.precision):
            raise UserError(why)
        optimizer = one_factory(parts.optimizer)
        adam_arguments(optimizer)  # refused before anything is imported
        require_megatron()
        from nemo_vfm.parallel.megatron.distributed_optimizer import MegatronUpdater
        from nemo_vfm.parallel.megatron.parallel_layers import split
        from nemo_vfm.parallel.megatron.schedule import MegatronPipeline, config_of, groups_of, run_alone

        plan = parts.plan
        # Megatron-Core asks its groups on one device, too.
        if plan.world == 1 and not dist.is_initialized():
            backend = "cuda:nccl,cpu:gloo" if device().type == "cuda" else "gloo"
            store = torch._C._distributed_c10d.HashStore()
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        mesh, groups, config = join(plan, device()), groups_of(plan), config_of(plan)
        model, fill, narrowed = build_unsplit(parts, self.init)
        if tables_of(model):
            raise UserError("engine=megatron does not update embedding tables. Use engine=torch.")
        apply_parallelism.require_divisible(model, plan)
        ranges = cut(model, plan, mesh.at) if plan.pipeline > 1 else []
        split(model, mesh, groups.tp, config)
        if self.recompute == "blocks":
            apply_parallelism.recompute(model)
        if fill is not None:
            fill(model, derive(parts.seed, "initial weights"), device())
        else:
            model.to(device())
        pipeline = None
        if ranges:
            pipeline = MegatronPipeline(model, stages_of(model, ranges, plan, mesh.at), mesh, config, groups)
        layout = enter_layout(model, mesh, parts, autocast=narrowed)
        return StepRunner(
            parts, model, layout, MegatronUpdater(model, optimizer, config, groups, mesh),
            [] if parts.precision.fp8 is None else [HistoryUpdater(model, mesh)], pipeline,
            backward=partial(run_alone, config=config, groups=groups),
            clip_norm=self.clip_norm, nonfinite=copy.copy(self.nonfinite),
        )  # fmt: skip


def require_megatron() -> None:
    """Import Megatron-Core and make sure that tensors can be put on the device it expects."""
    # Megatron-Core guards its import against ImportError alone, and an empty package raises RuntimeError.
    try:
        if available("transformer_engine"):
            require("transformer_engine", purpose="engine=megatron")
    except Exception as error:
        raise UserError(
            f"Transformer Engine is installed but cannot be imported ({error}), and Megatron-Core would fail on it. "
            f"Install transformer-engine[pytorch], or uninstall transformer-engine."
        ) from error
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it imports wandb where that is installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says what is not installed beside it
            import megatron.core
            import megatron.core.optimizer
            import megatron.core.pipeline_parallel
    except ImportError as error:
        raise MissingPackage(
            f"engine=megatron needs Megatron-Core, which cannot be imported here ({error}). Install it with: pip "
            f"install 'nemo_vfm[megatron]'"
        ) from error
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"Megatron-Core {megatron.core.__version__} needs NVIDIA GPUs, and this process has none ({error}). "
            f"Use engine=torch."
        ) from error
