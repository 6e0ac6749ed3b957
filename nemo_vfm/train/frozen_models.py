"""Builds and loads the models that a task reads and nothing trains, and says which trainings cannot have them."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Protocol

import torch
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.task import ReadsModels, Task
from nemo_vfm.parallel.apply.apply_parallelism import allocate
from nemo_vfm.parallel.apply.build_model import build_unfilled
from nemo_vfm.parallel.apply.frozen_weights import cast_weights, freeze
from nemo_vfm.parallel.engine.engine import Engine
from nemo_vfm.parallel.layers.token_layout import call_within
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import on_meta
from nemo_vfm.train.phases import PhaseSpan
from nemo_vfm.train.warm_start import FrozenModel, Weights


class Training(Protocol):
    """What is asked of a training."""

    model: Factory[[], nn.Module]
    task: Task
    weights: Weights
    engine: Engine
    parallel: ParallelPlan
    phases: list[PhaseSpan]
    precision: Precision


def load_frozen(job: Training, state: Json) -> dict[str, Json]:
    """Build and load `weights.frozen` on this rank, for the task; returns where the weights of each came from.

    Every rank must call it. UserError if the training cannot have them, or began with others, as its saved state says.
    """
    for address, text in frozen_objections(job):
        raise UserError(f"{'.'.join(address)}: {text}")
    if not isinstance(job.task, ReadsModels):
        return {}
    before = state.get("frozen", {}) if isinstance(state, dict) else {}
    job.task.read_models({})  # those of an earlier phase would stand beside these
    models, sources = dict[str, Callable[..., Tensor]](), dict[str, Json]()
    for name, one in job.weights.frozen.items():
        slot = f"weights.frozen.{name}.start_from"
        model, is_empty = build_unfilled(one.model, seed=0)
        freeze(model)
        cast_weights(model, job.precision.resolve()[0])  # as autocast makes them at each use: no output changes
        if is_empty:
            allocate(model, device())
        source = sources[name] = one.start_from.load_into(model.to(device()), slot)
        known = before.get(name, source)
        if source["sha256"] != known["sha256"]:
            raise UserError(f"{slot}: {source['path']} has sha256 {source['sha256'][:12]}..., but the steps before had "
                            f"{known['path']} of {known['sha256'][:12]}...; name that, or begin a new run")  # fmt: skip
        call_within(model.eval(), torch.no_grad, job.precision.autocast)
        models[name] = model.__call__  # no module: as a part of the task, it would be counted twice
    job.task.read_models(models)
    return sources


def frozen_objections(job: Training) -> Iterator[tuple[tuple[str, ...], str]]:
    """What a training cannot do with its `weights.frozen`: the address of what is to be changed, and a sentence."""
    frozen, task = job.weights.frozen, job.task
    if not isinstance(task, ReadsModels):
        if frozen:
            yield ("weights", "frozen"), f"{type(task).__name__} reads no frozen models; leave out {', '.join(frozen)}"
        return
    if frozen and job.engine.name() != "torch":
        yield ("engine",), f"the {job.engine.name()} engine has no frozen models (weights.frozen); set engine=torch"
    plans = {f"loop.phases.{one.name}.parallel": one.plan for one in job.phases} or {"parallel": job.parallel}
    for at, plan in plans.items() if frozen else ():
        if plan.world != plan.data:
            yield tuple(at.split(".")), (f"ranks run frozen models (weights.frozen) whole, on whole samples, but the "
                                         f"plan is {plan}; use only parallel.replicate and shard")  # fmt: skip
    if text := task.models_objection(on_meta(job.model), {name: on_meta(one.model) for name, one in frozen.items()}):
        yield ("weights", "frozen"), text


def without_memory(frozen: FrozenModel, precision: Precision) -> nn.Module:
    """A frozen model as each GPU holds it, where the precision `auto` is bf16."""
    model = deepcopy(on_meta(frozen.model))  # others look at the same one
    freeze(model)
    cast_weights(model, torch.float32 if precision.compute == "fp32" else torch.bfloat16)
    return model
