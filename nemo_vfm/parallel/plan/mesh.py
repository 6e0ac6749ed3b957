"""Creates the process groups of a plan and finds this process's place in them; no other file makes groups.

Ranks come from the environment, as torchrun and srun set it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.context.scheme import Scheme
from nemo_vfm.parallel.layers.token_layout import SharedHead, TokenLayout
from nemo_vfm.parallel.plan.plan import AXES, Coordinate, ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Divisible

#: How long a rank waits for the others before it gives up and says so.
TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Mesh:
    """This process among its peers. A group is None where this process is alone in it."""

    plan: ParallelPlan  #: the degrees
    rank: int  #: of this process among all
    at: Coordinate  #: its place on each axis
    #: pipeline x replicate x shard x tensor, where shard includes context: those share weights, too
    devices: DeviceMesh
    world: dist.ProcessGroup  #: every rank
    tokens: dist.ProcessGroup | None  #: the ranks that split one sequence's tokens outside of attention
    context: dist.ProcessGroup | None  #: those that split it inside
    tensor: dist.ProcessGroup | None  #: those that split the large linears
    pipeline: dist.ProcessGroup | None  #: those that hold the other parts of the blocks

    @property
    def sharding(self) -> DeviceMesh | None:
        """What FSDP works on: shard (and context), below replicate; None where each rank has weights of its own."""
        plan = self.plan
        if plan.replicate > 1:
            return self.devices["replicate", "shard"]
        return self.devices["shard"] if plan.shard * plan.context > 1 else None


def join(plan: ParallelPlan, device: torch.device) -> Mesh:
    """Meet the other ranks. UserError if their number is not the plan's, or this process was started alone."""
    if not dist.is_initialized():
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise UserError(
                f"The plan is for {plan.world} devices ({plan}), but this process was started alone ({missing[0]} is "
                f"not set). Start it through `nemo-vfm run`, torchrun or srun."
            )
        backend = "cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        plan.require(dist.get_world_size())
    except ValueError as error:
        raise UserError(f"{error}.") from error
    rank, at = dist.get_rank(), plan.coordinate(dist.get_rank())
    merged = (plan.pipeline, plan.replicate, plan.shard * plan.context, plan.tensor)
    names = ("pipeline", "replicate", "shard", "tensor")
    devices = DeviceMesh(device.type, torch.arange(plan.world).reshape(merged), mesh_dim_names=names)
    world = dist.group.WORLD
    assert world is not None
    return Mesh(
        plan, rank, at, devices, world, _group(plan, ("context", "tensor") if plan.sequence else ("context",)),
        _group(plan, ("context",)), _group(plan, ("tensor",)), _group(plan, ("pipeline",)),
    )  # fmt: skip


def _group(plan: ParallelPlan, axes: Sequence[str]) -> dist.ProcessGroup | None:
    """This rank's group along some axes; None where it is alone."""
    return None if all(plan.sizes[AXES.index(axis)] == 1 for axis in axes) else group_along(plan, axes)


def group_along(plan: ParallelPlan, axes: Sequence[str], backend: str | None = None) -> dist.ProcessGroup:
    """This rank's group along some axes, of one rank where there are none; every rank must call this."""
    return group_among(peers(plan, axes), backend)


def group_among(partition: Sequence[Sequence[int]], backend: str | None = None) -> dist.ProcessGroup:
    """This rank's group of a partition of all ranks. Every rank makes every group, in the same order, as torch asks."""
    groups = [(ranks, dist.new_group(list(ranks), backend=backend)) for ranks in partition]
    mine: dist.ProcessGroup = next(group for ranks, group in groups if dist.get_rank() in ranks)
    return mine


def layout_of(mesh: Mesh | None, model: nn.Module) -> TokenLayout:
    """Return how a model's tokens and heads are split over a mesh; every rank must call it."""
    if mesh is None:
        return TokenLayout()
    ranks = model.plan().ranks_per_kv_head(mesh.plan.tensor) if isinstance(model, Divisible) else 1
    shared = None
    if ranks > 1:  # tensor ranks that follow each other
        runs = [line[n : n + ranks] for line in peers(mesh.plan, ("tensor",)) for n in range(0, len(line), ranks)]
        shared = SharedHead(ranks, mesh.at.tensor % ranks, group_among(runs))
    if mesh.tokens is None and mesh.context is None:
        return TokenLayout(tensor=mesh.tensor, shared_head=shared)
    scheme = Scheme(kind=mesh.plan.attention, ulysses=mesh.plan.ulysses)
    return TokenLayout(mesh.tokens, mesh.context, scheme, mesh.tensor, shared)


def peers(plan: ParallelPlan, axes: Sequence[str]) -> list[list[int]]:
    """All ranks, in groups that differ on these axes only, each in the axes' order."""

    def others(rank: int) -> tuple[int, ...]:
        at = plan.coordinate(rank)
        return tuple(getattr(at, axis) for axis in AXES if axis not in axes)

    ranks = sorted(range(plan.world), key=lambda rank: (others(rank), rank))
    return [list(group) for _, group in groupby(ranks, key=others)]
