"""Computes what a device keeps: elements of each parameter, and bytes of weights, gradients and optimizer state.

Nothing is allocated.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.without_compiler import without_compiler
from nemo_vfm.parallel.plan.adapter_split import ADAPTERS, is_adapter
from nemo_vfm.parallel.plan.plan import ParallelPlan, shares
from nemo_vfm.parallel.plan.sharding_spec import (
    Divisible,
    OptimizerFactory,
    Optimizers,
    ShardingSpec,
    match_modules,
    networks_of,
)


def state_of(
    model: Factory[[], nn.Module], optimizer: Optimizers, plan: ParallelPlan = ParallelPlan()
) -> tuple[int, dict[str, int]]:  # fmt: skip
    """How many parameters there are, and the bytes of weights, gradients and optimizer on the device that keeps most.

    Rows of embedding tables are counted as parameters; each device keeps all of them, with their optimizer's state.

    The model is built on the meta device, where tensors have shapes but no memory: any size takes a second.
    """
    from nemo_vfm.sparse.tables.fused_tables import count_rows, tables_of

    built = on_meta(model)
    tables = [tensor for one in tables_of(built).values() for tensor in one.state().values()]
    count = count_rows(built)[1] + sum(parameter.numel() for parameter in built.parameters())
    by_child = optimizer if isinstance(optimizer, Mapping) else {"": optimizer}
    memory = {f"{child}." if child else "": StaticMemory(factory) for child, factory in by_child.items()}
    named, states = dict(built.named_parameters()), list[dict[str, int]]()
    for own in portions(built, plan):
        learning = {name: size for name, size in own.items() if named[name].requires_grad}
        weights = sum(named[name].element_size() * size for name, size in own.items())
        updated = {
            name: kept.by(named[name].dtype, size)
            for name, size in learning.items()
            for below, kept in memory.items()
            if name.startswith(below)
        }
        last = [*memory][-1]  # all turns but the last are copied, in case that a later one is refused
        copied = sum(named[name].element_size() * learning[name] + state for name, state in updated.items()
                     if not name.startswith(last))  # fmt: skip
        states.append({
            "weights": sum(map(_bytes, built.buffers())) + weights,
            "gradients": sum(named[name].element_size() * size for name, size in learning.items()),
            "optimizer": sum(updated.values()),
        } | ({"copies of earlier turns": copied} if len(memory) > 1 else {}))  # fmt: skip
    most = max(states, key=lambda bytes_of: sum(bytes_of.values()))
    return count, most | ({"tables": sum(map(_bytes, tables))} if tables else {})


def weight_bytes(model: nn.Module, plan: ParallelPlan) -> int:
    """Bytes of the weights that a device keeps of a model, which may be without memory; no pipeline cuts it."""
    total = sum(map(_bytes, model.buffers()))
    for network in networks_of(model):
        named, own = dict(network.named_parameters()), portions(network, plan)[0]
        total += sum(named[name].element_size() * size for name, size in own.items())
    return total


def on_meta(model: Factory[[], nn.Module]) -> nn.Module:
    """The model without memory; nothing is drawn for its weights, which there would be nowhere to put.

    Only to look at: who asks again with the same factory gets the same module.
    """
    for known, built in _BUILT:
        if known is model:
            return built
    with torch.device("meta"), _Undrawn():
        made = model()
    _BUILT.append((model, made))
    return made


# `check` asks up to six times for each model of a recipe, and a large one takes 0.2 s (one core, 2026-11).
_BUILT: deque[tuple[Factory[[], nn.Module], nn.Module]] = deque(maxlen=8)


class _Undrawn(TorchFunctionMode):
    """Leaves tensors as they are that would be filled: to draw on the meta device imports torch's compiler."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """See `TorchFunctionMode`."""
        given = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__ or func in _DRAWING:
            return args[0] if args else given["tensor"]
        if func is torch.eye:
            return torch.empty(args[0], args[-1], **given)
        return func(*args, **given)


_DRAWING = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.zero_, Tensor.fill_})


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class StaticMemory:
    """What the optimizer keeps, found by one step on a parameter of six numbers for each dtype.

    A step on meta tensors would be simpler, but fused optimizers refuse that device.
    """

    def __init__(self, optimizer: OptimizerFactory) -> None:
        self._optimizer = optimizer
        self._found: dict[torch.dtype, tuple[int, int]] = {}

    def by(self, dtype: torch.dtype, numbers: int) -> int:
        """Bytes for a parameter of so many numbers."""
        if dtype not in self._found:
            parameter = nn.Parameter(torch.zeros(2, 3, dtype=dtype))
            with without_compiler():
                made = self._optimizer([("weight", parameter)])
                parameter.grad = torch.zeros_like(parameter)
                made.step()
            state: Mapping[str, object] = made.state[parameter]
            kept = [value for value in state.values() if isinstance(value, Tensor)]
            per_number = sum(tensor.element_size() for tensor in kept if tensor.shape == parameter.shape)
            self._found[dtype] = per_number, sum(_bytes(tensor) for tensor in kept if tensor.shape != parameter.shape)
        per_number, fixed = self._found[dtype]
        return numbers * per_number + fixed


def portions(model: nn.Module, plan: ParallelPlan) -> list[dict[str, int]]:
    """Numbers of each parameter that is kept, for each device of the pipeline.

    Where rows of a weight do not divide evenly this is the share of the device with most.
    """
    how = model.plan() if isinstance(model, Divisible) else None
    sizes = {name: _numbers(name, tuple(parameter.shape), plan, how) for name, parameter in model.named_parameters()}
    if how is None or plan.pipeline == 1:
        return [sizes]
    modules = dict(model.named_modules())
    blocks = shares(len(list(modules[how.blocks].children())), plan.stages)
    holder: dict[str, Sequence[int]] = {
        f"{how.blocks}.{block}": [stage % plan.pipeline] for stage, own in enumerate(blocks) for block in own
    }
    holder |= {module: [0] for module in match_modules(how.first, modules)}
    holder |= {module: [plan.pipeline - 1] for module in match_modules(how.last, modules)}
    homes = {
        name: next((at for module, at in holder.items() if name.startswith(f"{module}.")), range(plan.pipeline))
        for name in sizes
    }  # the devices of the pipeline that hold each parameter
    apart = match_modules(how.every, modules) if plan.virtual > 1 else []  # which each then keeps whole, see `shard`
    prefixes = tuple(f"{module}." for module in apart)
    whole = {name: parameter.numel() for name, parameter in model.named_parameters() if name.startswith(prefixes)}
    return [
        {name: whole.get(name, size) for name, size in sizes.items() if place in homes[name]}
        for place in range(plan.pipeline)
    ]


def _numbers(name: str, shape: tuple[int, ...], plan: ParallelPlan, how: ShardingSpec | None) -> int:
    if how is not None and plan.tensor > 1:
        axis = split_axis(name, how)
        shape = tuple(size // plan.tensor if place == axis else size for place, size in enumerate(shape))
    rows, *rest = shape or (1,)
    return -(-rows // (plan.shard * plan.context)) * prod(rest)


def split_axis(name: str, how: ShardingSpec) -> int | None:
    """Along which axis tensor ranks split a parameter; None where each has all of it, as of a row linear's bias."""
    module, _, kind = name.rpartition(".")
    if is_adapter(name):
        # Of a column linear B and magnitudes are split, of a row linear A: see `plan/adapter_split.py`.
        linear = name.partition(f".{ADAPTERS}.")[0]
        if match_modules(how.column, (linear,)):
            return None if kind.endswith("_a") else 0
        return 1 if kind.endswith("_a") and match_modules(how.row, (linear,)) else None
    if match_modules(how.column + how.vocabulary + how.across_heads, (module,)):
        return 0
    return 1 if kind == "weight" and match_modules(how.row, (module,)) else None
