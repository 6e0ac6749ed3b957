"""Sums each rank's part of the gradients to those of one device, and computes their norm.

FSDP has already averaged over the ranks that share weights. What is left are parameters that several ranks hold whole
while each saw only some tokens, some heads or some stages (docs/how-to/training/several_devices.md). Sums are of plain
local tensors, and never a mean: what a mean would be over depends on the layout.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nemo_vfm.parallel.apply.local_shard import local, spread
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Divisible, matching

_BUCKET_BYTES = 64 << 20  # of one all-reduce: few calls, and no second copy of all gradients


@dataclass(frozen=True, slots=True)
class ParamOwnership:
    """A parameter, and who else has it.

    Args:
        name: in the model.
        parameter: whole or a part.
        over_tensor: its gradient is a part of a sum over the tensor ranks.
        over_pipeline: the same over the pipeline's.
        over_data: the same over the ranks that share other weights, which FSDP does not see to for one kept whole.
        copies: ranks that hold the very same part.
    """

    name: str
    parameter: nn.Parameter
    over_tensor: bool
    over_pipeline: bool
    over_data: bool
    copies: int


def held(model: nn.Module, mesh: Mesh | None) -> list[ParamOwnership]:
    """What this rank holds, with who shares it; None where it is alone."""
    if mesh is None:
        return [ParamOwnership(name, parameter, False, False, False, 1) for name, parameter in model.named_parameters()]
    plan = mesh.plan
    how = model.plan() if isinstance(model, Divisible) else None
    modules = [name for name, _ in model.named_modules()]
    sums = TensorSums(model, plan)
    repeated = {name for pattern in (how.every if how else ()) for name in matching(pattern, modules)}
    found = []
    for name, parameter in model.named_parameters():
        axes = () if (parts := spread(parameter)) is None else parts.device_mesh.mesh_dim_names or ()
        split = parts is not None and "tensor" in axes and not parts.placements[axes.index("tensor")].is_replicate()
        # The bias of a row linear is not sharded, but it is a DTensor, which has summed its gradient already.
        partly = "tensor" not in axes and name in sums
        on_all = plan.pipeline > 1 and _below(name, repeated)
        whole = mesh.sharding is not None and "shard" not in axes
        copies = plan.replicate * (1 if split else plan.tensor) * (plan.pipeline if on_all else 1)
        copies *= plan.shard * plan.context if whole else 1
        found.append(ParamOwnership(name, parameter, partly, on_all, whole, copies))
    return found


class TensorSums:
    """Names of parameters whose gradient is a part of a sum over the tensor ranks, if these hold them whole.

    Each rank has seen only some tokens, or some heads.
    """

    def __init__(self, model: nn.Module, plan: ParallelPlan) -> None:
        how = model.plan() if isinstance(model, Divisible) else None
        modules = dict(model.named_modules())
        self._plan = plan
        self._of_heads = {name for pattern in (how.per_head if how else ()) for name in matching(pattern, modules)}
        complete = {name for pattern in (how.whole_gradient if how else ()) for name in matching(pattern, modules)}
        marked = {name for name, module in modules.items() if getattr(module, "whole_gradient", False)}
        self._complete = complete | marked

    def __contains__(self, name: str) -> bool:
        """Whether it is one of them."""
        own = self._plan.tensor > 1 and not _below(name, self._complete)
        return own and (self._plan.sequence or _below(name, self._of_heads))


def _below(name: str, modules: set[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)


def sum_partial(holding: Sequence[ParamOwnership], mesh: Mesh) -> None:
    """Add up what FSDP does not: over tensor ranks, then over stages; and what it does not know of, as it would."""
    if mesh.tensor is not None:
        all_reduce(_gradients(one for one in holding if one.over_tensor), mesh.tensor)
    if mesh.pipeline is not None:
        all_reduce(_gradients(one for one in holding if one.over_pipeline), mesh.pipeline)
    if mesh.sharding is not None and (apart := _gradients(one for one in holding if one.over_data)):
        for group in mesh.sharding.get_all_groups():
            all_reduce(apart, group)
        torch._foreach_div_(apart, mesh.sharding.size())  # FSDP's are means until the step's end


def _gradients(holding: Iterable[ParamOwnership]) -> list[Tensor]:
    """Their gradients; zeros where this rank's samples did not touch a parameter, since the others will wait for it."""
    found = []
    for one in holding:
        if one.parameter.requires_grad:
            if one.parameter.grad is None:
                one.parameter.grad = torch.zeros_like(one.parameter)
            found.append(local(one.parameter.grad))
    return found


def all_reduce(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Sum plain tensors over a group, in place, in a few large calls."""
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(flat, group=group)
        borders = list(itertools.accumulate(tensor.numel() for tensor in bucket))[:-1]
        parts = torch.tensor_split(flat, borders)
        torch._foreach_copy_(bucket, [part.view_as(tensor) for tensor, part in zip(bucket, parts, strict=True)])


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and (bucket[0].dtype != tensor.dtype or sum(t.nbytes for t in bucket) > _BUCKET_BYTES):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def square_sum(holding: Sequence[ParamOwnership]) -> float:
    """This rank's share of the squared norm: summed over all ranks it counts every number once."""
    squares = [
        torch.linalg.vector_norm(local(one.parameter.grad), dtype=torch.float64).square() / one.copies
        for one in holding
        if one.parameter.grad is not None and local(one.parameter.grad).numel()
    ]
    return float(torch.stack(squares).sum()) if squares else 0.0


def scale(holding: Sequence[ParamOwnership], factor: float) -> None:
    """Multiply every gradient."""
    if factor != 1.0:
        gradients = [local(one.parameter.grad) for one in holding if one.parameter.grad is not None]
        torch._foreach_mul_(gradients, factor)
