# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs optimizer steps on one device or on many under a plan, with the same sums on any layout.

Every rank adds up weight times loss over its samples and tokens, unscaled. At the end of the step one all-reduce of
three numbers (loss, weight, squared norm) tells every rank what to divide by. So nothing depends on how samples, tokens
or layers are spread.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import DevicePlan
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.apply.frozen_weights import narrow
from nemo_vfm.parallel.apply.pipeline_schedule import Pipeline
from nemo_vfm.parallel.apply.pipeline_stage import Stage, cut, repeated, stages_of
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import joined
from nemo_vfm.parallel.context.token_layout import under
from nemo_vfm.parallel.engine import gradients
from nemo_vfm.parallel.engine.engine import EngineInputs, Shapes, StepResult
from nemo_vfm.parallel.engine.mesh_engine import MeshEngine, Recompute, born, plan_notes, summed_over_ranks
from nemo_vfm.parallel.engine.model_layout import call_under, layout_of
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.engine.sharded_optimizer import ShardedOptimizer
from nemo_vfm.parallel.fp8.use_fp8 import (
    close_step,
    drop_step,
    require_hardware,
    use_fp8,
)
from nemo_vfm.parallel.plan.mesh import Mesh, join
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import OptimizerFactory, state_of
from nemo_vfm.parallel.tables.table_updates import Clip, TableUpdates, require_data_parallel


class TorchEngine(MeshEngine):
    """DTensor, FSDP2 and our own context parallel under one plan; alone on one device it is plain PyTorch.

    Args:
        clip_norm: the gradient's global L2 norm is scaled down to this; None leaves it.
        clip: of a model with embedding tables, whether rows' gradients count and are scaled, too (all), or only those
            of the other weights (dense); the reported norm is of the same ones.
        recompute: blocks runs each block again in backward instead of keeping its activations; none keeps them.
        offload_optimizer: keep the optimizer's state in host memory.
        compile: compile each block with torch.compile.
        nonfinite: what becomes of a step whose loss or gradient is not a number.
    """

    def __init__(
        self, *, clip_norm: float | None = 1.0, recompute: Recompute = "none",
        offload_optimizer: bool = False, compile: bool = False,
        nonfinite: NonFinite = NonFinite(), clip: Clip = "all",
    ) -> None:  # fmt: skip
        super().__init__(clip_norm=clip_norm, recompute=recompute, nonfinite=nonfinite)
        if clip not in ("all", "dense"):
            raise ValueError(f"clip must be all or dense, got {clip!r}")
        self.clip: Clip = clip
        self.offload_optimizer, self.compile = offload_optimizer, compile

    def plan_for(
        self, num_gpus: int, plan: ParallelPlan, model: Factory[[], nn.Module], optimizer: OptimizerFactory
    ) -> DevicePlan:
        """How the plan uses a number of GPUs, and the memory that each needs."""
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
        """See `ObjectsToPlans`."""
        zero_bubble = plan.schedule == "zero_bubble" and plan.pipeline > 1
        if self.compile and zero_bubble:
            return ("The zero_bubble schedule splits the backward pass of each linear layer, but engine.compile "
                    "fuses a block; use parallel.schedule: interleaved, or engine.compile: false.")  # fmt: skip
        if precision.fp8 is None or precision.fp8.kernels == "torch" or not (self.compile or zero_bubble):
            return ""
        return ("engine.compile cannot trace Transformer Engine's kernels, and the zero_bubble schedule uses twice "
                "what they store; use precision.fp8.kernels: torch, or neither of the two.")  # fmt: skip

    def start(self, parts: EngineInputs) -> nn.Module:
        """Meet the other ranks, build this rank's part of the model from the seed, and the optimizer over it.

        Raises:
            UserError: the plan does not fit the engine, the model or the number of ranks.
        """
        if why := self.objection(parts.plan, parts.precision):
            raise UserError(why)
        self.parts, plan = parts, parts.plan
        self.mesh = join(plan, device()) if plan.world > 1 else None
        self.model = self._built(parts)
        self.model.train()
        self._holding = gradients.held(self.model, self.mesh)
        self._optimizer: ShardedOptimizer = ShardedOptimizer(
            parts.optimizer, self._holding, offload=self.offload_optimizer
        )
        self._tables = TableUpdates(self.model, self.mesh)
        return self.model

    def _built(self, parts: EngineInputs) -> nn.Module:
        model, meta = born(parts)
        narrowed = narrow(model, parts.precision.resolved()[0])
        if parts.precision.fp8 is not None:
            require_hardware(parts.precision.fp8)
            use_fp8(model, parts.precision.fp8, parts.plan.tensor)
        if self.mesh is not None:
            require_data_parallel(model, parts.plan)
            apply_parallelism.require_divisible(model, parts.plan)
            ranges = cut(model, parts.plan, self.mesh.at) if parts.plan.pipeline > 1 else []
            apply_parallelism.split_linears(model, self.mesh)
        if self.recompute == "blocks":
            apply_parallelism.recompute(model)
        if self.compile:
            apply_parallelism.compile_blocks(model)
        if not meta:
            model.to(device())
        if self.mesh is not None:
            self._shared(model, stages_of(model, ranges, parts.plan, self.mesh.at) if ranges else [], self.mesh)
        if meta:
            apply_parallelism.fill(model, derive(parts.seed, "initial weights"), device())
        self.layout = layout_of(self.mesh, model)
        # Weights that are shared are gathered in the dtype of the arithmetic, frozen ones are stored in it, and both
        # take their inputs in no other.
        shared = self.mesh is not None and self.mesh.sharding is not None
        call_under(model, self.layout, parts.precision.autocast if shared or narrowed else nullcontext)
        return model

    def _shared(self, model: nn.Module, stages: Sequence[Stage], mesh: Mesh) -> None:
        """Spread the weights over the ranks that share them; stage by stage where there is a pipeline."""
        dtype = self.parts.precision.resolved()[0]
        if not stages:
            apply_parallelism.shard(model, mesh, dtype)
            return
        # What several stages on one rank have in common can belong to none of their FSDP roots.
        apart = repeated(model) if len(stages) > 1 else set()
        for stage in stages:
            apply_parallelism.shard(stage, mesh, dtype, stage.blocks(), apart=apart, gather_once=True)
        self._pipeline = Pipeline(model, stages, mesh)

    def step(self, microbatches: Sequence[Batch], lr_factor: float) -> StepResult:
        """Forward and backward over this rank's samples, sums over all ranks, clip, update.

        Raises:
            UserError: the loss is not finite, on any rank, and that stops the run.
        """
        for one in self._holding:
            one.parameter.grad = None
        self._tables.forget()
        shapes: list[Shapes] = []
        with under(self.layout):
            sums = [self._backward(batch, shapes) for batch in microbatches]
        own, weight = (sum(column) for column in zip(*sums, strict=True))
        loss, weight, norm, samples = self._sums(own, weight, sum(len(batch) for batch in microbatches))
        if not self.nonfinite.may_update(own, norm, microbatches):
            drop_step(self.model)
            self._tables.forget()
            return StepResult(loss, norm, 0.0, samples, shapes)
        factor = self._clipped(norm)
        gradients.scale(self._holding, factor * self._averaged() / weight)
        self._tables.update(weight, factor if self.clip == "all" else 1.0, lr_factor)
        lr = self._optimizer.step(lr_factor)
        close_step(self.model, self.mesh)
        return StepResult(loss, norm, lr, samples, shapes)

    def gradients(self) -> dict[str, Tensor]:
        """See `MeshEngine.gradients`."""
        return {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}

    def _backward_alone(self, pieces: Sequence[Batch], shapes: list[Shapes]) -> tuple[float, float]:
        sums = [self._backward_piece(piece, shapes) for piece in pieces]
        return sum(loss for loss, _ in sums), sum(weight for _, weight in sums)

    def _backward_piece(self, batch: Batch, shapes: list[Shapes]) -> tuple[float, float]:
        prepared, losses_B = self._forward(batch, training=True)
        shapes.append(prepared.shapes())
        loss = (losses_B * prepared.weight_B).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), float(prepared.weight_B.sum())

    def _sums(self, loss: float, weight: float, samples: int) -> tuple[float, float, float, int]:
        """(mean loss, weight, norm of its gradient, samples) over the global batch, the same on every rank."""
        loss, whole, norm, samples = self._dense_sums(loss, weight, samples)
        self._tables.exchange()
        return loss, whole, self._tables.norm_with(norm, whole, self.clip), samples

    def _dense_sums(self, loss: float, weight: float, samples: int) -> tuple[float, float, float, int]:
        if self.mesh is None:
            square, whole = gradients.square_sum(self._holding), max(weight, 1e-12)
            return loss / whole, whole, math.sqrt(square) / whole, samples
        gradients.sum_partial(self._holding, self.mesh)
        loss, whole, count, square = summed_over_ranks(
            self.mesh.plan, loss, weight, samples, gradients.square_sum(self._holding)
        )
        return loss, whole, math.sqrt(square) * self._averaged() / whole, round(count)

    def _averaged(self) -> int:
        """FSDP gives means where sums are wanted: over so many ranks."""
        return 1 if self.mesh is None or self.mesh.sharding is None else self.mesh.sharding.size()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """See `MeshEngine.tensors`; tables, too."""
        tables = self._tables.tensors()
        return super().tensors() | ({"tables": tables} if tables else {})

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put weights and optimizer state back, of which each rank reads its part; every rank must call it.

        Raises:
            CorruptCheckpoint: names or shapes are not this model's.
        """
        super().load(groups)
        self._tables.load(groups.get("tables", {}), joined())
