"""Splits a model that is served over tensor ranks, and carries rank 0's orders to the others.

Shape letters: R rows, V vocabulary, D width.
"""

import json
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.apply.local_shard import dtensor
from nemo_vfm.parallel.layers.token_layout import all_parts
from nemo_vfm.parallel.plan.mesh import Mesh, join
from nemo_vfm.parallel.plan.plan import ParallelPlan


class ServingRanks:
    """The tensor ranks of one served model. Every rank must make every call, in the same order."""

    def __init__(self, mesh: Mesh) -> None:
        self._group, self._rank, self.count = mesh.world, mesh.rank, mesh.plan.tensor

    def tell(self, order: Json) -> None:
        """Rank 0's word to all others, which `hear` it."""
        data = torch.frombuffer(bytearray(json.dumps(order).encode()), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(data)]), 0, group=self._group)
        dist.broadcast(data, 0, group=self._group)

    def hear(self) -> Json:
        """The next order of rank 0."""
        length = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(length, 0, group=self._group)
        data = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self._group)
        found: Json = json.loads(bytes(data.tolist()))
        return found

    def from_first(self, x: Tensor) -> Tensor:
        """Rank 0's tensor on every rank; the others give one of its shape."""
        x = x.contiguous()
        dist.broadcast(x, 0, group=self._group)
        return x

    def all_columns(self, scores_RV: Tensor) -> Tensor:
        """(R, V) from each rank's columns."""
        return torch.cat(all_parts(scores_RV, self._group), dim=1)


def split_for_serving(model: nn.Module, tensor: int) -> ServingRanks:
    """Keep this rank's share of the weights, by the model's own plan. UserError if these ranks cannot share it."""
    plan = ParallelPlan(tensor=tensor)
    require_whole_heads(model, tensor)
    apply_parallelism.require_divisible(model, plan)
    mesh = join(plan, device())
    apply_parallelism.split_linears(model, mesh)
    return ServingRanks(mesh)


def require_whole_heads(model: nn.Module, tensor: int) -> None:
    """Refuse a number of ranks that would share a head of keys and values."""
    how = apply_parallelism.read_sharding_spec(model)
    fit = [number for number in how.tensor_degrees() if how.heads % number == 0]
    if tensor not in fit:
        queries = "" if how.query_heads in (None, how.heads) else f" ({how.query_heads} of queries)"
        raise UserError(f"--tensor {tensor} does not divide the model's {how.heads} heads of keys and values{queries}; "
                        f"{', '.join(map(str, fit))} would")  # fmt: skip


def sum_of_shares(weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    """What adds up the products of ranks that have some inputs each; None where a rank has all inputs."""
    found = dtensor(weight)
    if found is None or not found.placements[0].is_shard(1):
        return None
    return partial(_all_reduce, group=found.device_mesh.get_group())


def _all_reduce(x: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    dist.all_reduce(x, group=group)
    return x
