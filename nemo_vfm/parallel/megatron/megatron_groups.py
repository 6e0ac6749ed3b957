"""Gives Megatron-Core the process groups of our mesh, so that both engines place ranks alike."""

from nemo_vfm.core.optional import require

require("megatron.core", purpose="engine=megatron")

from collections.abc import Callable

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection

from nemo_vfm.parallel.plan.mesh import group_along
from nemo_vfm.parallel.plan.plan import AXES, ParallelPlan

#: Megatron-Core's name of a group -> the axes that it runs along.
ALONG: dict[str, tuple[str, ...]] = {
    "tp": ("tensor",),
    "cp": ("context",),
    "pp": ("pipeline",),
    "mp": ("pipeline", "tensor"),
    "dp": ("replicate", "shard"),
    "dp_cp": ("replicate", "shard", "context"),
    "intra_dp_cp": ("shard", "context"),
    "inter_dist_opt": ("replicate",),
    "intra_dist_opt": ("pipeline", "shard", "context", "tensor"),
    # There are no experts, so these are of this rank alone.
    "ep": (),
    "expt_dp": (),
    "intra_expt_dp": (),
    "tp_ep_pp": (),
}


def groups_of(plan: ParallelPlan) -> ProcessGroupCollection:
    """Make this rank's groups; every rank must call it."""
    made: dict[tuple[str, ...], dist.ProcessGroup] = {}
    found = {name: _group(plan, axes, made) for name, axes in ALONG.items()}
    if parallel_state._GLOBAL_MEMORY_BUFFER is None:  # sequence parallelism gathers into it
        make: Callable[[], None] = parallel_state._set_global_memory_buffer
        make()
    return ProcessGroupCollection(**found, embd=None, pos_embd=None)


def _group(
    plan: ParallelPlan, axes: tuple[str, ...], made: dict[tuple[str, ...], dist.ProcessGroup]
) -> dist.ProcessGroup:
    """One group for all names that mean the same ranks."""
    key = tuple(axis for axis in AXES if axis in axes and plan.sizes[AXES.index(axis)] > 1)
    if key not in made:
        made[key] = group_along(plan, key)
    return made[key]
