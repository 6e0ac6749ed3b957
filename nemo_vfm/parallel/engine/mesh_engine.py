# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Holds what engines do alike around their own arithmetic: samples into losses, clipping, evaluation, checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from nemo_vfm.core import log
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.task import ModelInputs, ScoresSamples
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.apply.frozen_weights import learned_state
from nemo_vfm.parallel.apply.pipeline_schedule import Pipeline, require_even
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import joined
from nemo_vfm.parallel.checkpoint.checkpoint_reader import everywhere, fill, mismatch, put, shapes_of
from nemo_vfm.parallel.context.token_layout import Layout
from nemo_vfm.parallel.engine.engine import EngineInputs, Shapes, StepResult, build_model, build_unfilled
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.fp8.use_fp8 import history_tensors, is_mark, switch_off, switched_off
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import on_meta
from nemo_vfm.parallel.ranks.gather import Gather
from nemo_vfm.parallel.tables.table_updates import require_data_parallel

Recompute = Literal["none", "blocks"]


class RankOptimizer(Protocol):
    """Updates the parameters of one rank."""

    optimizer: torch.optim.Optimizer

    def tensors(self) -> dict[str, Tensor]:
        """Its state as `parameter name/key`."""
        ...

    def load(self, tensors: Mapping[str, Tensor], ranks: Gather) -> None:
        """The inverse of `tensors`."""
        ...


class MeshEngine:
    """An engine on a mesh of ranks; a subclass starts it and takes the steps.

    Args:
        clip_norm: the gradient's global L2 norm is scaled down to this; None leaves it.
        recompute: blocks runs each block again in backward instead of keeping its activations; none keeps them.
        nonfinite: what becomes of a step whose loss or gradient is not a number.
    """

    parts: EngineInputs
    model: nn.Module
    layout: Layout
    _optimizer: RankOptimizer

    def __init__(self, *, clip_norm: float | None, recompute: Recompute, nonfinite: NonFinite) -> None:
        if clip_norm is not None and clip_norm <= 0:
            raise ValueError(f"clip_norm must be above zero, got {clip_norm}; set null to switch clipping off")
        if recompute not in ("none", "blocks"):
            raise ValueError(f"recompute must be none or blocks, got {recompute!r}")
        self.clip_norm, self.recompute, self.nonfinite = clip_norm, recompute, nonfinite
        self.mesh: Mesh | None = None
        self._pipeline: Pipeline | None = None
        #: Called with each micro-batch that is trained on, once `tags` has its scores; None computes none.
        self.on_scores: Callable[[ModelInputs], None] | None = None

    def start(self, parts: EngineInputs) -> nn.Module:
        """See `Engine.start`."""
        raise NotImplementedError

    def step(self, microbatches: Sequence[Batch], lr_factor: float) -> StepResult:
        """See `Engine.step`."""
        raise NotImplementedError

    def gradients(self) -> dict[str, Tensor]:
        """Those that the last step used, by parameter, this rank's part where others have more; all must call it."""
        raise NotImplementedError

    def _backward(self, batch: Batch, shapes: list[Shapes]) -> tuple[float, float]:
        """(sum of losses by their weights, sum of the weights); gradients are added to those that are there."""
        pieces = batch.cut(self.parts.plan.microbatches)
        if self._pipeline is None:
            return self._backward_alone(pieces, shapes)
        require_even(batch, self.parts.plan.microbatches)
        prepared = [self._prepared(piece, training=True) for piece in pieces]
        shapes.extend(one.shapes() for one in prepared)
        loss = self._pipeline.backward(prepared, self.parts.task.losses, self.parts.precision.autocast)
        return loss, sum(float(one.weight_B.sum()) for one in prepared)

    def _backward_alone(self, pieces: Sequence[Batch], shapes: list[Shapes]) -> tuple[float, float]:
        """See `_backward`; no other rank has a part of this one's blocks."""
        raise NotImplementedError

    def _prepared(self, batch: Batch, *, training: bool) -> ModelInputs:
        return self.parts.task.prepare(batch.to(device()), seed=self.parts.seed, training=training)

    def _forward(self, batch: Batch, *, training: bool) -> tuple[ModelInputs, Tensor]:
        prepared = self._prepared(batch, training=training)
        with self.parts.precision.autocast():
            output = self.model(**prepared.inputs)
        if isinstance(self.parts.task, ScoresSamples) and not (training and self.on_scores is None):
            prepared.tags.update(self.parts.task.scores(output.detach().float(), prepared))
            if training and self.on_scores is not None:
                self.on_scores(prepared)
        return prepared, self.parts.task.losses(output.float(), prepared)

    def _clipped(self, norm: float) -> float:
        """What the gradient is multiplied by."""
        return 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / (norm + 1e-6))

    def optimizer(self) -> torch.optim.Optimizer:
        """See `Engine.optimizer`."""
        return self._optimizer.optimizer

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[Tensor, ModelInputs]:
        """See `Engine.evaluate`; the model is in evaluation mode."""
        self.model.eval()
        prepared, losses_B = self._forward(batch, training=False)
        self.model.train()
        return losses_B, prepared

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The state of model, optimizer and FP8; a tensor may be this rank's part (DTensor) of a larger one.

        Every rank must call it.
        """
        scales = history_tensors(self.model) | switched_off(self.model)
        groups = {"model": learned_state(self.model), "optimizer": self._optimizer.tensors()}
        return groups | ({"fp8": scales} if scales else {})

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put weights and optimizer state back, of which each rank reads its part; every rank must call it.

        Raises:
            CorruptCheckpoint: names or shapes are not this model's.
        """
        ranks = joined()
        fill(learned_state(self.model), groups["model"], ranks)
        self._optimizer.load(groups["optimizer"], ranks)
        self._load_scales(groups.get("fp8", {}), ranks)

    def _load_scales(self, saved: Mapping[str, Tensor], ranks: Gather) -> None:
        """Those of a checkpoint; a training that was not in FP8 by this recipe before begins with empty histories."""
        switch_off(self.model, list(saved))
        own, there = history_tensors(self.model), {n: shape for n, shape in shapes_of(saved).items() if not is_mark(n)}
        if (shapes := everywhere(own, ranks)) and mismatch(shapes, there):
            log.warn("the checkpoint has no amax histories for these linears and this length, so they start empty")
        elif shapes:
            put(own, saved, ranks)


def born(parts: EngineInputs) -> tuple[nn.Module, bool]:
    """See `build_unfilled`; a single device holds the whole model from the start."""
    if parts.plan.world > 1:
        return build_unfilled(parts.model, parts.seed)
    return build_model(parts.model, parts.seed), False


def summed_over_ranks(plan: ParallelPlan, loss: float, weight: float, samples: int, *more: float) -> list[float]:
    """(mean loss, weight, samples, further sums) over the global batch; ranks of the same samples all counted them."""
    alike = plan.world / plan.data
    sums = torch.tensor([loss / alike, weight / alike, samples / alike, *more], dtype=torch.float64, device=device())
    if plan.world > 1:
        torch.distributed.all_reduce(sums)
    loss, weight, *others = sums.tolist()
    whole = max(weight, 1e-12)
    return [loss / whole, whole, *others]


def plan_notes(num_gpus: int, plan: ParallelPlan, model: Factory[[], nn.Module]) -> list[str]:
    """What is wrong with a plan on so many GPUs, for this model."""
    notes, idle = [], num_gpus - plan.world
    if idle > 0:
        notes.append(f"this recipe trains on {plan}, so {idle} of {num_gpus} GPUs would be idle")
    elif idle < 0:
        notes.append(f"the plan is for {plan.world} devices ({plan}), but there are {num_gpus}, so it would not start")
    try:
        require_data_parallel(on_meta(model), plan)
        apply_parallelism.require_divisible(on_meta(model), plan)
    except UserError as error:
        notes.append(f"it would not start: {error}")
    return notes
