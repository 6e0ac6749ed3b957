"""Builds a model and its updaters by PyTorch's own parallelism: what `TorchEngine.start` does."""

import copy
from collections.abc import Mapping
from typing import Literal

from nemo_vfm.core.device import device
from nemo_vfm.core.seed import derive
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.apply.pipeline_schedule import RankPipeline
from nemo_vfm.parallel.apply.pipeline_stage import cut, params_of_every_stage, stages_of
from nemo_vfm.parallel.engine.engine import Init, Recompute
from nemo_vfm.parallel.engine.history_updater import HistoryUpdater
from nemo_vfm.parallel.engine.model_start import build_unsplit, enter_layout
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner, Updater
from nemo_vfm.parallel.engine.turns import require_turns
from nemo_vfm.parallel.engine.weight_updater import WeightUpdater
from nemo_vfm.parallel.plan.mesh import join
from nemo_vfm.parallel.tables.table_updater import TableUpdater, require_data_parallel
from nemo_vfm.sparse.tables.fused_tables import tables_of


def start(
    parts: EngineInputs, *, clip_norm: float | None, clip: Literal["all", "dense"], recompute: Recompute, init: Init,
    offload_optimizer: bool, compile: bool, nonfinite: NonFinite,
) -> StepRunner:  # fmt: skip
    """Meet the other ranks, build this rank's part of the model from the seed, and what updates it."""
    plan, mesh = parts.plan, join(parts.plan, device()) if parts.plan.world > 1 else None
    model, fill, narrowed = build_unsplit(parts, init)
    require_turns(parts, model)
    pipeline, ranges = None, list[range]()
    if mesh is not None:
        require_data_parallel(model, plan)
        apply_parallelism.require_divisible(model, plan)
        ranges = cut(model, plan, mesh.at) if plan.pipeline > 1 else []
        apply_parallelism.split_linears(model, mesh)
    if recompute == "blocks":
        apply_parallelism.recompute(model)
    if compile:
        apply_parallelism.compile_blocks(model)
    if fill is None:
        model.to(device())
    if mesh is not None:
        stages = stages_of(model, ranges, plan, mesh.at) if ranges else []
        dtype = parts.precision.resolve()[0]
        if not stages:
            apply_parallelism.shard(model, mesh, dtype)
        else:
            # What several stages on one rank have in common can belong to none of their FSDP roots.
            apart = params_of_every_stage(model) if len(stages) > 1 else set()
            for stage in stages:
                apply_parallelism.shard(stage, mesh, dtype, stage.blocks(), apart=apart, gather_once=True)
            pipeline = RankPipeline(model, stages, mesh)
    if fill is not None:
        fill(model, derive(parts.seed, "initial weights"), device())
    shared = mesh is not None and mesh.sharding is not None
    layout = enter_layout(model, mesh, parts, autocast=shared or narrowed)
    by_child = parts.optimizer if isinstance(parts.optimizer, Mapping) else {"": parts.optimizer}
    dense = {child: WeightUpdater(factory, model, mesh, offload=offload_optimizer, child=child)
             for child, factory in by_child.items()}  # fmt: skip
    others: list[Updater] = [TableUpdater(model, mesh, clip)] if tables_of(model) else []
    others += [] if parts.precision.fp8 is None else [HistoryUpdater(model, mesh)]
    return StepRunner(
        parts, model, layout, next(iter(dense.values())), others, pipeline, clip_norm=clip_norm,
        nonfinite=copy.copy(nonfinite), turns={} if "" in dense else dense,
    )  # fmt: skip
