# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs optimizer steps by Megatron-Core: its layers, schedule, DDP and optimizer, with the sums of one device.

Megatron-Core is imported at `start`, so a recipe is checked without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import DevicePlan
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.apply.frozen_weights import learned_state, narrow
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import joined
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.parallel.context.token_layout import under
from nemo_vfm.parallel.engine.engine import EngineInputs, Shapes, StepResult, build_model
from nemo_vfm.parallel.engine.model_layout import call_under, layout_of
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.megatron.adam_arguments import adam_arguments
from nemo_vfm.parallel.megatron.megatron_import import require_megatron
from nemo_vfm.parallel.plan.mesh import join
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import OptimizerFactory


class MegatronEngine:
    """Megatron-Core 0.16 under the same plan as the other engine; `shard` shares the optimizer's state (ZeRO-1).

    Args:
        clip_norm: the gradient's global L2 norm is scaled down to this; None leaves it.
        recompute: blocks runs each block again in backward instead of keeping its activations; none keeps them.
        nonfinite: what becomes of a step whose loss or gradient is not a number.
    """

    def __init__(
        self, *, clip_norm: float | None = 1.0, recompute: Literal["none", "blocks"] = "none",
        nonfinite: NonFinite = NonFinite(),
    ) -> None:  # fmt: skip
        if clip_norm is not None and clip_norm <= 0:
            raise ValueError(f"clip_norm must be above zero, got {clip_norm}; write null to switch clipping off")
        if recompute not in ("none", "blocks"):
            raise ValueError(f"recompute must be none or blocks, got {recompute!r}")
        self.clip_norm, self.recompute, self.nonfinite = clip_norm, recompute, nonfinite

    def plan_for(
        self, num_gpus: int, plan: ParallelPlan, model: Factory[[], nn.Module], optimizer: OptimizerFactory
    ) -> DevicePlan:
        """What the plan makes of so many GPUs; weights and gradients are whole over `shard`, unlike FSDP's."""
        found = TorchEngine().plan_for(num_gpus, plan, model, optimizer)
        kept = TorchEngine().plan_for(num_gpus, _unshared(plan), model, optimizer).state_bytes
        notes = [*found.notes]
        if why := self.objection(plan, Precision()):
            notes.append(f"it would not start: {why}")
        try:
            adam_arguments(optimizer)
        except UserError as error:
            notes.append(f"it would not start: {error}")
        state = {**kept, "optimizer": found.state_bytes["optimizer"]}
        return DevicePlan(found.num_used, found.parameters, state, tuple(notes))

    def objection(self, plan: ParallelPlan, precision: Precision) -> str:
        """See `ObjectsToPlans`."""
        if plan.pipeline > 1:
            return "engine=megatron has no pipeline yet; use parallel.pipeline: 1, or engine=torch."
        if precision.fp8 is not None:
            return ("engine=megatron computes in FP8 by Transformer Engine alone, which is not connected. Use "
                    "engine=torch, or a precision without fp8.")  # fmt: skip
        return ""

    def start(self, parts: EngineInputs) -> nn.Module:
        """Meet the other ranks, build this rank's part of the model from the seed, and the optimizer over it.

        Raises:
            UserError: the plan, the optimizer or this machine does not allow it.
        """
        if why := self.objection(parts.plan, parts.precision):
            raise UserError(why)
        arguments = adam_arguments(parts.optimizer)
        require_megatron()
        from nemo_vfm.parallel.megatron.distributed_optimizer import MegatronOptimizer
        from nemo_vfm.parallel.megatron.megatron_groups import groups_of
        from nemo_vfm.parallel.megatron.parallel_layers import split_parameters
        from nemo_vfm.parallel.megatron.schedule import Schedule, config_of

        self.parts, plan = parts, parts.plan
        _meet_alone(plan)
        self.mesh, groups = join(plan, device()), groups_of(plan)
        self._config = config_of(plan)
        self.model = self._built(groups.tp)
        self.model.train()
        self._schedule: Schedule = Schedule(self.model, self._config, groups, self.mesh)
        dims = split_parameters(self.model)
        self._optimizer = MegatronOptimizer(self._schedule.wrapped, arguments, groups, self.mesh, dims)
        return self.model

    def _built(self, group: dist.ProcessGroup) -> nn.Module:
        from nemo_vfm.parallel.megatron.parallel_layers import split

        parts, plan = self.parts, self.parts.plan
        model = build_model(parts.model, parts.seed)
        narrowed = narrow(model, parts.precision.resolved()[0])
        apply_parallelism.require_divisible(model, plan)
        _fill(model, derive(parts.seed, "initial weights"), plan)
        split(model, self.mesh, group, self._config)
        if self.recompute == "blocks":
            apply_parallelism.recompute(model)
        model.to(device())
        self.layout = layout_of(self.mesh, model)
        call_under(model, self.layout, parts.precision.autocast if narrowed else nullcontext)
        return model

    def step(self, microbatches: Sequence[Batch], lr_factor: float) -> StepResult:
        """Forward and backward over this rank's samples, sums over all ranks, clip, update.

        Raises:
            UserError: the loss is not finite, on any rank, and that stops the run.
        """
        self._optimizer.zero_grad()
        shapes: list[Shapes] = []
        pieces = [piece for batch in microbatches for piece in batch.cut(self.parts.plan.microbatches)]
        with under(self.layout):
            own, weight = self._schedule.run(self._forwards(pieces, shapes), len(pieces))
        samples = sum(len(batch) for batch in microbatches)
        loss, whole, count = self._sums(own, weight, samples)
        self._schedule.wrapped.scale_gradients(1 / whole)
        norm = self._optimizer.norm()
        if not self.nonfinite.may_update(own, norm, microbatches):
            return StepResult(loss, norm, 0.0, count, shapes)
        return StepResult(loss, norm, self._optimizer.step(self._clipped(norm), lr_factor), count, shapes)

    def _forwards(self, pieces: Sequence[Batch], shapes: list[Shapes]) -> Iterator[tuple[Tensor, float]]:
        """Of each microbatch: the sum of its losses by their weights, and the sum of the weights."""
        for piece in pieces:
            prepared, losses_B = self._forward(piece, training=True)
            shapes.append(prepared.shapes())
            yield (losses_B * prepared.weight_B).sum(), float(prepared.weight_B.sum())

    def _forward(self, batch: Batch, *, training: bool) -> tuple[ModelInputs, Tensor]:
        prepared = self.parts.task.prepare(batch.to(device()), seed=self.parts.seed, training=training)
        with self.parts.precision.autocast():
            output = self.model(**prepared.inputs)
        return prepared, self.parts.task.losses(output.float(), prepared)

    def _sums(self, loss: float, weight: float, samples: int) -> tuple[float, float, int]:
        """(mean loss, weight, samples) over the global batch; ranks of the same samples all counted them."""
        alike = self.mesh.plan.world / self.mesh.plan.data
        sums = torch.tensor([loss / alike, weight / alike, samples / alike], dtype=torch.float64, device=device())
        dist.all_reduce(sums)
        loss, weight, count = sums.tolist()
        whole = max(weight, 1e-12)
        return loss / whole, whole, round(count)

    def _clipped(self, norm: float) -> float:
        return 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / (norm + 1e-6))

    def optimizer(self) -> torch.optim.Optimizer:
        """See `Engine.optimizer`."""
        return self._optimizer.optimizer

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[Tensor, ModelInputs]:
        """The loss of each sample with the model in evaluation mode."""
        self.model.eval()
        prepared, losses_B = self._forward(batch, training=False)
        self.model.train()
        return losses_B, prepared

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The model's state and the optimizer's, under the other engine's names; every rank must call it."""
        return {"model": learned_state(self.model), "optimizer": self._optimizer.tensors()}

    def gradients(self) -> dict[str, Tensor]:
        """Of the last step before clipping, by parameter; every rank must call it."""
        return dict(self._optimizer.gradients())

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put weights and optimizer state back, of which each rank reads its part; every rank must call it.

        Raises:
            CorruptCheckpoint: names or shapes are not this model's.
        """
        ranks = joined()
        fill(learned_state(self.model), groups["model"], ranks)
        self._optimizer.load(groups["optimizer"], ranks)


def _fill(model: nn.Module, seed: int, plan: ParallelPlan) -> None:
    """On several devices the other engine draws weights by their names; so does this one, to begin alike."""
    if plan.world > 1 and isinstance(model, apply_parallelism.Drawn) and not list(model.buffers()):
        apply_parallelism.draw(model, seed)


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
