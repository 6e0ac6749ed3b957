"""Does what every engine begins with: says what is wrong with a plan, builds the unsplit model, enters the layout."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.apply.build_model import build_model, build_unfilled
from nemo_vfm.parallel.apply.frozen_weights import cast_weights
from nemo_vfm.parallel.engine.engine import Init
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.layers.token_layout import TokenLayout, call_within, under
from nemo_vfm.parallel.plan.mesh import Mesh, layout_of
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import on_meta

#: Gives a model without memory this rank's part of its first values, from a seed, on a device.
Filling = Callable[[nn.Module, int, torch.device], None]
#: Parameters of a model that takes long to draw on a CPU, one number after another: half a second and more.
_LARGE = 100_000_000


def plan_notes(num_gpus: int, plan: ParallelPlan, model: Factory[[], nn.Module]) -> list[str]:
    """What is wrong with a plan on so many GPUs, for this model."""
    from nemo_vfm.parallel.tables.table_updater import require_data_parallel

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


def build_unsplit(parts: EngineInputs, init: Init) -> tuple[nn.Module, Filling | None, bool]:
    """(the unsplit model, how it is to be filled where it has no memory yet, whether frozen weights are narrowed).

    Its large linears are in FP8 where the precision says so, and narrowed weights in the arithmetic's dtype.
    """
    several = parts.plan.world > 1
    fill: Filling | None = None
    if several or (init != "generator" and _draws_its_weights(parts.model)):
        model, meta = build_unfilled(parts.model, parts.seed)
        counter = init == "counter" or (init == "auto" and sum(one.numel() for one in model.parameters()) > _LARGE)
        if meta and (several or counter):
            fill = partial(apply_parallelism.fill, counter=counter)
        elif meta:  # a single rank holds the whole model from the start
            model = build_model(parts.model, parts.seed)
    else:
        model = build_model(parts.model, parts.seed)
    narrowed = cast_weights(model, parts.precision.resolve()[0])
    if parts.precision.fp8 is not None:
        from nemo_vfm.parallel.fp8.use_fp8 import require_hardware, use_fp8

        require_hardware(parts.precision.fp8)
        use_fp8(model, parts.precision.fp8, parts.plan.tensor)
    return model, fill, narrowed


def _draws_its_weights(factory: Factory[[], nn.Module]) -> bool:
    """Whether it calls a class of `SeededWeights`; a function may load what a model without memory would lose."""
    target = getattr(factory, "target", getattr(factory, "func", factory))  # of a recipe's factory, of a partial
    return isinstance(target, type) and hasattr(target, "initial_weight")


def enter_layout(model: nn.Module, mesh: Mesh | None, parts: EngineInputs, *, autocast: bool) -> TokenLayout:
    """Let every call of a model in training run under the layout that it was split for; every rank must call it.

    Args:
        autocast: whether calls from outside a step need the arithmetic's dtype, too: weights that are shared are
            gathered in it, frozen ones are stored in it, and both take their inputs in no other.
    """
    layout = layout_of(mesh, model)
    contexts: list[Callable[[], AbstractContextManager[object]]] = [] if mesh is None else [partial(under, layout)]
    contexts += [parts.precision.autocast] if autocast else []
    if contexts:
        call_within(model, *contexts)  # in previews, too
    model.train()
    return layout
