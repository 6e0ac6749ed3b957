"""Runs prepared microbatches through the pipeline's stages: gradients on every rank, the loss on the last stage's.

torch.distributed.pipelining orders the work and sends activations between stages. The other inputs of each block (noise
level, text, frame rate) are computed on each stage. Every rank of a pipeline has the whole microbatch for it. That is
less work than sending them and their gradients. Gradients are sums: the schedules must not scale them.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.types.sample_batches import LAID
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.parallel.apply.pipeline_stage import PipelineStage, put_off, take_deferred
from nemo_vfm.parallel.plan.mesh import Mesh

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_MAX_DIMS = 8

Inputs = tuple[tuple[str, tuple[int, ...]], ...]
Losses = Callable[[Tensor, ModelInputs], Tensor]
Around = Callable[[], AbstractContextManager[object]]


class RankPipeline:
    """The stages of one rank among those of its peers.

    Args:
        model: what callers see; its forward becomes that of all stages together, without gradients.
        stages: those of this rank.
        mesh: this rank among the others.
    """

    def __init__(self, model: nn.Module, stages: Sequence[PipelineStage], mesh: Mesh) -> None:
        assert mesh.pipeline is not None
        self.model, self.mesh, self.group = model, mesh, mesh.pipeline
        self.stages = {stage.index: stage for stage in stages}
        self._between: dict[Inputs, torch.Size] = {}
        self._dtype = torch.float32
        self._schedule: tuple[object, Any] = (None, None)
        model.forward = self.forward
        if mesh.plan.schedule == "zero_bubble":
            for stage in stages:
                stage.later = []
                put_off(stage.blocks(), stage.later)

    @torch.no_grad()
    def forward(self, **inputs: Tensor) -> Tensor:
        """The model's output, on every rank of the pipeline."""
        plan, me, x = self.mesh.plan, self.mesh.at.pipeline, torch.empty(0)
        for index in range(plan.stages):
            owner, before = index % plan.pipeline, (index - 1) % plan.pipeline
            if owner == me:
                given = None
                if index:
                    header = _header(None)
                    dist.recv(header, group=self.group, group_src=before)
                    given = _as_told(header)
                    dist.recv(given, group=self.group, group_src=before)
                x = self._forward_stage(index, inputs, given)
                if not self.stages[index].is_last:
                    self._between[_shapes_by_name(inputs)], self._dtype = x.shape, x.dtype
                    to = (index + 1) % plan.pipeline
                    dist.send(_header(x), group=self.group, group_dst=to)
                    dist.send(x.contiguous(), group=self.group, group_dst=to)
        holder = plan.pipeline - 1  # of the last stage, whose output all ranks get
        mine = me == holder
        header = _header(x if mine else None)
        dist.broadcast(header, group=self.group, group_src=holder)
        output = x.contiguous() if mine else _as_told(header)
        dist.broadcast(output, group=self.group, group_src=holder)
        return output

    def _forward_stage(self, index: int, inputs: dict[str, Tensor], x: Tensor | None) -> Tensor:
        if x is not None:
            self._between[_shapes_by_name(inputs)], self._dtype = x.shape, x.dtype
        from torch.distributed.fsdp import FSDPModule

        stage = self.stages[index]
        self._set_inputs([inputs])
        output: Tensor = stage(x) if x is not None else stage()
        for module in stage.modules():  # a forward without backward: nobody else gives the weights back
            if isinstance(module, FSDPModule):
                module.reshard()
        return output

    def _set_inputs(self, inputs: "Sequence[dict[str, Tensor]]", under: Around = nullcontext) -> None:
        for stage in self.stages.values():
            stage.inputs, stage.microbatch, stage.under = inputs, 0, under
            stage.part.training = self.model.training

    def backward(self, prepared: Sequence[ModelInputs], losses: Losses, under: Around) -> float:
        """Forward, in the context `under`, and backward of all microbatches, alike in shape, by the plan's schedule.

        Returns:
            The sum of losses by their weights, once on each rank of the last stage for every rank of its pipeline;
            0 on the others.
        """
        for one in prepared:
            if _shapes_by_name(one.tensors()) != _shapes_by_name(prepared[0].tensors()):
                raise UserError(
                    f"A pipeline needs microbatches of one shape, but these differ: {prepared[0].shapes()} and "
                    f"{one.shapes()}. Use batches that parallel.microbatches divides evenly, or no pipeline."
                )
        # What goes between stages for inputs of this shape is found by a forward that all ranks take together: data
        # ranks may have different shapes (packed samples), and those that share weights must agree on each forward.
        first = prepared[0]
        missing = torch.tensor(float(_shapes_by_name(first.tensors()) not in self._between), device=device())
        dist.all_reduce(missing)
        if missing:
            with under():
                self.forward(**first.tensors())
        self._set_inputs([one.tensors() for one in prepared], under)
        self._prepared, self._losses = prepared, losses
        try:
            found = self._run(len(prepared), self._between[_shapes_by_name(prepared[0].tensors())])
        finally:
            self._set_inputs(())
        return sum(float(loss.detach()) for loss in found) * self.mesh.plan.pipeline

    def _run(self, count: int, shape: torch.Size) -> list[Tensor]:
        """Forward and backward of so many microbatches; the losses, on the last stage's rank."""
        found: list[Tensor] = []
        try:
            # One schedule is kept: each holds a buffer for every microbatch.
            if self._schedule[0] != (key := (count, shape, self._dtype)):
                self._schedule = (key, _schedule(self, count, torch.empty(shape, dtype=self._dtype, device="meta")))
            self._schedule[1].step(target=torch.arange(count), losses=found, return_outputs=False)
        except RuntimeError as error:
            if isinstance(error.__cause__, ValueError | NemoVfmError):
                raise error.__cause__ from None  # torch puts all inputs around it
            raise
        return found

    def loss(self, output: Tensor, microbatch: Tensor) -> Tensor:
        """The sum over one microbatch."""
        prepared = self._prepared[int(microbatch)]
        return (self._losses(output.float(), prepared) * prepared.weight_B).sum()


def require_even(samples: int, microbatches: int) -> None:
    """Refuse samples of one shape that cannot be cut into equal parts."""
    if samples % microbatches:
        raise UserError(
            f"A pipeline needs microbatches of equal size: {samples} samples of each data rank cannot be divided by "
            f"parallel.microbatches = {microbatches}. Change one of them."
        )


def require_same(stage: int, output: Tensor, between: Tensor) -> None:
    """Refuse what a stage sends if the next one expects another shape or type."""
    if (output.shape, output.dtype) != (between.shape, between.dtype):
        raise ValueError(
            f"stage {stage} outputs {tuple(output.shape)} {output.dtype}, but others output "
            f"{tuple(between.shape)} {between.dtype}; a pipeline needs the same between all blocks"
        )


def _schedule(pipeline: RankPipeline, count: int, between: Tensor) -> Any:
    from torch.distributed import pipelining

    plan = pipeline.mesh.plan

    class Numbered(pipelining.PipelineStage):
        """Tells its module which microbatch comes."""

        def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
            assert isinstance(self.submod, PipelineStage)
            self.submod.microbatch = fwd_chunk_id
            output = super().forward_one_chunk(fwd_chunk_id, *arguments, **options)
            if not self.is_last:
                require_same(self.stage_index, output, between)
            return output

    flowing = between.requires_grad_()
    stages = [
        Numbered(stage, index, plan.stages, device(), group=pipeline.group, input_args=(flowing,) if index else (),
                 output_args=(flowing,), dw_builder=None if stage.later is None else partial(take_deferred,
        stage.later))
        for index, stage in pipeline.stages.items()
    ]  # fmt: skip
    options: dict[str, Any] = {"loss_fn": pipeline.loss, "scale_grads": False}
    if plan.virtual == 1:
        return pipelining.Schedule1F1B(stages[0], count, **options)
    zero = plan.schedule == "zero_bubble"
    kind = pipelining.ScheduleInterleavedZeroBubble if zero else pipelining.ScheduleInterleaved1F1B
    return kind(list(stages), count, **options)


def _shapes_by_name(inputs: "dict[str, Tensor]") -> Inputs:
    return tuple(sorted((name, tuple(tensor.shape)) for name, tensor in inputs.items() if name not in LAID))


def _header(x: Tensor | None) -> Tensor:
    """What tells the others a tensor's dtype and shape; of None, room for it."""
    numbers = [] if x is None else [_DTYPES.index(x.dtype), x.dim(), *x.shape]
    return torch.tensor(numbers + [0] * (2 + _MAX_DIMS - len(numbers)), device=device())


def _as_told(header: Tensor) -> Tensor:
    dtype, dims, *sizes = header.tolist()
    return torch.empty(sizes[:dims], dtype=_DTYPES[dtype], device=device())
