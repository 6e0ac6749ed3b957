"""Checks an engine's settings and plan before anything is started."""

from typing import Literal

from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import on_meta
from nemo_vfm.parallel.tables.table_updater import require_data_parallel

Recompute = Literal["none", "blocks"]


def require_settings(clip_norm: float | None, recompute: str) -> None:
    """ValueError where an engine's arguments make no sense."""
    if clip_norm is not None and clip_norm <= 0:
        raise ValueError(f"clip_norm must be above zero, got {clip_norm}; set null to switch clipping off")
    if recompute not in ("none", "blocks"):
        raise ValueError(f"recompute must be none or blocks, got {recompute!r}")


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
