# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs optimizer steps by Megatron-Core: its layers, schedule, DDP and optimizer, with the sums of one device.

Megatron-Core is imported at `start`, so a recipe is checked without it.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import DevicePlan
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.apply.frozen_weights import narrow
from nemo_vfm.parallel.apply.pipeline_schedule import Pipeline
from nemo_vfm.parallel.apply.pipeline_stage import cut, stages_of
from nemo_vfm.parallel.context.token_layout import under
from nemo_vfm.parallel.engine.engine import EngineInputs, Shapes, StepResult
from nemo_vfm.parallel.engine.mesh_engine import MeshEngine, Recompute, born, plan_notes, summed_over_ranks
from nemo_vfm.parallel.engine.model_layout import call_under, layout_of
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.fp8.use_fp8 import close_step, drop_step, require_hardware, use_fp8
from nemo_vfm.parallel.megatron.adam_arguments import adam_arguments
from nemo_vfm.parallel.megatron.megatron_import import require_megatron
from nemo_vfm.parallel.plan.mesh import Mesh, join
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import OptimizerFactory, on_meta, state_of
from nemo_vfm.sparse.tables.fused_tables import tables_of


@needs_packages("megatron.core")
class MegatronEngine(MeshEngine):
    """Megatron-Core 0.16 under the same plan as the other engine; `shard` shares the optimizer's state (ZeRO-1).

    Args:
        clip_norm: the gradient's global L2 norm is scaled down to this; None leaves it.
        recompute: blocks runs each block again in backward instead of keeping its activations; none keeps them.
        nonfinite: what becomes of a step whose loss or gradient is not a number.
    """

    def __init__(
        self, *, clip_norm: float | None = 1.0, recompute: Recompute = "none",
        nonfinite: NonFinite = NonFinite(),
    ) -> None:  # fmt: skip
        super().__init__(clip_norm=clip_norm, recompute=recompute, nonfinite=nonfinite)

    def plan_for(
        self, num_gpus: int, plan: ParallelPlan, model: Factory[[], nn.Module], optimizer: OptimizerFactory
    ) -> DevicePlan:
        """How the plan uses a number of GPUs; unlike with FSDP, `shard` splits neither weights nor gradients."""
        notes = plan_notes(num_gpus, plan, model)
        if why := self.objection(plan, Precision()):
            notes.append(f"it would not start: {why}")
        try:
            adam_arguments(optimizer)
            _require_no_tables(on_meta(model))
        except UserError as error:
            notes.append(f"it would not start: {error}")
        count, shared = state_of(model, optimizer, plan)
        _, whole = state_of(model, optimizer, _unshared(plan))
        return DevicePlan(min(plan.world, num_gpus), count, {**whole, "optimizer": shared["optimizer"]}, tuple(notes))

    def objection(self, plan: ParallelPlan, precision: Precision) -> str:
        """See `ObjectsToPlans`."""
        if plan.schedule == "zero_bubble":
            return "Megatron-Core has no zero-bubble schedule. Use parallel.schedule: interleaved, or engine=torch."
        return ""

    def start(self, parts: EngineInputs) -> nn.Module:
        """Meet the other ranks, build this rank's part of the model from the seed, and the optimizer over it.

        Raises:
            UserError: the plan, the optimizer or this machine does not allow it.
        """
        if why := self.objection(parts.plan, parts.precision):
            raise UserError(why)
        adam_arguments(parts.optimizer)  # refused before anything is imported
        require_megatron()
        from nemo_vfm.parallel.megatron.data_parallel import DataParallel
        from nemo_vfm.parallel.megatron.distributed_optimizer import MegatronOptimizer
        from nemo_vfm.parallel.megatron.megatron_groups import groups_of
        from nemo_vfm.parallel.megatron.parallel_layers import split_parameters
        from nemo_vfm.parallel.megatron.schedule import config_of

        self.parts, plan = parts, parts.plan
        _meet_alone(plan)
        self.mesh, self._groups, self._config = join(plan, device()), groups_of(plan), config_of(plan)
        self.model = self._built(self.mesh)
        self.model.train()
        self._data: DataParallel = DataParallel(self.model, self._config, self._groups, self.mesh)
        dims = split_parameters(self.model)
        self._optimizer: MegatronOptimizer = MegatronOptimizer(
            self._data.wrapped, parts.optimizer, self._groups, self.mesh, dims
        )
        return self.model

    def _built(self, mesh: Mesh) -> nn.Module:
        from nemo_vfm.parallel.megatron.parallel_layers import split

        parts, plan = self.parts, self.parts.plan
        model, meta = born(parts)
        _require_no_tables(model)
        narrowed = narrow(model, parts.precision.resolved()[0])
        if parts.precision.fp8 is not None:
            require_hardware(parts.precision.fp8)
            use_fp8(model, parts.precision.fp8, plan.tensor)
        apply_parallelism.require_divisible(model, plan)
        ranges = cut(model, plan, mesh.at) if plan.pipeline > 1 else []
        split(model, mesh, self._groups.tp, self._config)
        if self.recompute == "blocks":
            apply_parallelism.recompute(model)
        if meta:
            apply_parallelism.fill(model, derive(parts.seed, "initial weights"), device())
        else:
            model.to(device())
        if ranges:
            self._pipeline = self._pipelined(model, ranges, mesh)
        self.layout = layout_of(mesh, model)
        call_under(model, self.layout, parts.precision.autocast if narrowed else nullcontext)
        return model

    def _pipelined(self, model: nn.Module, ranges: Sequence[range], mesh: Mesh) -> Pipeline:
        from nemo_vfm.parallel.megatron.schedule import MegatronPipeline

        stages = stages_of(model, ranges, mesh.plan, mesh.at)
        return MegatronPipeline(model, stages, mesh, self._config, self._groups)

    def step(self, microbatches: Sequence[Batch], lr_factor: float) -> StepResult:
        """Forward and backward over this rank's samples, sums over all ranks, clip, update.

        Raises:
            UserError: the loss is not finite, on any rank, and that stops the run.
        """
        self._optimizer.zero_grad()
        self._data.forget()
        shapes: list[Shapes] = []
        with under(self.layout):
            sums = [self._backward(batch, shapes) for batch in microbatches]
        own, weight = (sum(column) for column in zip(*sums, strict=True))
        self._data.finish()
        samples = sum(len(batch) for batch in microbatches)
        loss, whole, count = summed_over_ranks(self.parts.plan, own, weight, samples)
        self._data.scale(1 / whole)
        norm = self._optimizer.norm()
        if not self.nonfinite.may_update(own, norm, microbatches):
            drop_step(self.model)
            return StepResult(loss, norm, 0.0, round(count), shapes)
        lr = self._optimizer.step(self._clipped(norm), lr_factor)
        close_step(self.model, self.mesh)
        return StepResult(loss, norm, lr, round(count), shapes)

    def _backward_alone(self, pieces: Sequence[Batch], shapes: list[Shapes]) -> tuple[float, float]:
        from nemo_vfm.parallel.megatron.schedule import run_alone

        return run_alone(self._forwards(pieces, shapes), len(pieces), self._config, self._groups)

    def _forwards(self, pieces: Sequence[Batch], shapes: list[Shapes]) -> Iterator[tuple[Tensor, float]]:
        """Of each microbatch: the sum of its losses by their weights, and the sum of the weights."""
        for piece in pieces:
            prepared, losses_B = self._forward(piece, training=True)
            shapes.append(prepared.shapes())
            yield (losses_B * prepared.weight_B).sum(), float(prepared.weight_B.sum())

    def gradients(self) -> dict[str, Tensor]:
        """See `MeshEngine.gradients`; before clipping."""
        return dict(self._optimizer.gradients())


def _require_no_tables(model: nn.Module) -> None:
    if tables_of(model):
        raise UserError("engine=megatron does not update embedding tables. Use engine=torch.")


def _unshared(plan: ParallelPlan) -> ParallelPlan:
    """A plan of as many ranks where each has whole weights."""
    # Context ranks hold the same weights; the other engine shares them, and this one does not.
    return replace(plan, shard=1, replicate=plan.replicate * plan.shard * plan.context, context=1, ulysses=1,
                   attention="ring")  # fmt: skip


def _meet_alone(plan: ParallelPlan) -> None:
    """Megatron-Core asks its groups on one device, too."""
    if plan.world == 1 and not dist.is_initialized():
        backend = "cuda:nccl,cpu:gloo" if device().type == "cuda" else "gloo"
        store = torch._C._distributed_c10d.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
