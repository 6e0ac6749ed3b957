"""Computes how many elements of each parameter a device keeps, for every place in the pipeline."""

from collections.abc import Sequence
from math import prod

from torch import nn

from nemo_vfm.parallel.plan.adapter_split import ADAPTERS, is_adapter
from nemo_vfm.parallel.plan.plan import ParallelPlan, shares
from nemo_vfm.parallel.plan.sharding_spec import Declared, Divisible, matching


def portions(model: nn.Module, plan: ParallelPlan) -> list[dict[str, int]]:
    """Numbers of each parameter that is kept, for each device of the pipeline.

    Where rows of a weight do not divide evenly this is the share of the device with most.
    """
    how = model.plan() if isinstance(model, Divisible) else None
    sizes = {name: _numbers(name, tuple(parameter.shape), plan, how) for name, parameter in model.named_parameters()}
    if how is None or plan.pipeline == 1:
        return [sizes]
    homes = _homes(model, how, plan)
    apart = _matched(model, how.every) if plan.virtual > 1 else []  # which each then keeps whole, see split.shard
    whole = {name: parameter.numel() for name, parameter in model.named_parameters() if _below(name, apart)}
    return [
        {name: whole.get(name, size) for name, size in sizes.items() if place in homes[name]}
        for place in range(plan.pipeline)
    ]


def _numbers(name: str, shape: tuple[int, ...], plan: ParallelPlan, how: Declared | None) -> int:
    if how is not None and plan.tensor > 1:
        axis = split_axis(name, how)
        shape = tuple(size // plan.tensor if place == axis else size for place, size in enumerate(shape))
    rows, *rest = shape or (1,)
    return -(-rows // (plan.shard * plan.context)) * prod(rest)


def split_axis(name: str, how: Declared) -> int | None:
    """Along which axis tensor ranks split a parameter; None where each has all of it, as of a row linear's bias."""
    module, _, kind = name.rpartition(".")
    if is_adapter(name):
        return _adapter_axis(name.partition(f".{ADAPTERS}.")[0], kind, how)
    if _among(module, how.column + how.vocabulary + how.across_heads):
        return 0
    return 1 if kind == "weight" and _among(module, how.row) else None


def _adapter_axis(linear: str, kind: str, how: Declared) -> int | None:
    """Of a column linear B and magnitudes are split, of a row linear A: see `apply/adapter_split.py`."""
    if _among(linear, how.column):
        return None if kind.endswith("_a") else 0
    return 1 if kind.endswith("_a") and _among(linear, how.row) else None


def _homes(model: nn.Module, how: Declared, plan: ParallelPlan) -> dict[str, Sequence[int]]:
    """The devices of the pipeline that hold each parameter."""
    blocks = shares(len(list(model.get_submodule(how.blocks).children())), plan.stages)
    holder = {f"{how.blocks}.{block}": [stage % plan.pipeline] for stage, own in enumerate(blocks) for block in own}
    holder |= {module: [0] for module in _matched(model, how.first)}
    holder |= {module: [plan.pipeline - 1] for module in _matched(model, how.last)}
    return {
        name: next((at for module, at in holder.items() if name.startswith(f"{module}.")), range(plan.pipeline))
        for name, _ in model.named_parameters()
    }


def _among(module: str, patterns: tuple[str, ...]) -> bool:
    return any(matching(pattern, (module,)) for pattern in patterns)


def _matched(model: nn.Module, patterns: tuple[str, ...]) -> list[str]:
    names = [name for name, _ in model.named_modules()]
    return [name for pattern in patterns for name in matching(pattern, names)]


def _below(name: str, modules: Sequence[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)
