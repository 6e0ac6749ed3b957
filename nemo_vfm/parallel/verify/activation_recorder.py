"""Records every module's output and every gradient of a few training steps on each rank.

A module's output is what this rank has of it: some samples, some tokens, some features. `place` says which.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.parallel.apply.local_shard import full_tensor
from nemo_vfm.parallel.plan.layout_cases import Degrees
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.verify.tiny_training import SAMPLES, TinyTraining

Packed = tuple[tuple[int, ...], bytes]
Place = tuple[slice, ...]


@dataclass(slots=True)
class RecordedStep:
    """What one rank saw of one step."""

    outputs: dict[str, list[Tensor]] = field(default_factory=dict)  #: of each module, call by call
    order: list[str] = field(default_factory=list)  #: the names of modules as they were done, one a call
    loss: float = 0.0  #: the same on every rank
    gradients: dict[str, Tensor] = field(default_factory=dict)  #: by parameter, whole
    weights: dict[str, Tensor] = field(default_factory=dict)  #: the same after the step

    def __getstate__(self) -> dict[str, Any]:
        """Bytes in the place of tensors: torch would hand each over as an open file, and there are hundreds."""
        return {
            "outputs": {name: [_pack(one) for one in calls] for name, calls in self.outputs.items()},
            "order": self.order,
            "loss": self.loss,
            "gradients": {name: _pack(one) for name, one in self.gradients.items()},
            "weights": {name: _pack(one) for name, one in self.weights.items()},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.outputs = {name: [_unpack(one) for one in calls] for name, calls in state["outputs"].items()}
        self.order, self.loss = state["order"], state["loss"]
        self.gradients = {name: _unpack(one) for name, one in state["gradients"].items()}
        self.weights = {name: _unpack(one) for name, one in state["weights"].items()}


def _pack(tensor: Tensor) -> Packed:
    return tuple(tensor.shape), tensor.contiguous().numpy().tobytes()


def _unpack(packed: Packed) -> Tensor:
    shape, data = packed
    return torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape) if data else torch.empty(shape)


def steps(rank: int, rehearsal: TinyTraining, degrees: Degrees, count: int) -> list[RecordedStep]:
    """Take so many steps on this rank, and tell of each.

    Raises:
        UserError, ValueError: the model does not allow the plan.
    """
    plan, found = ParallelPlan(**degrees), []
    runner = rehearsal.start(plan)
    for index in range(count):
        step, modules = RecordedStep(), [(name, module) for name, module in runner.model.named_modules() if name]
        handles = [module.register_forward_hook(partial(_note, name, step)) for name, module in modules]
        try:
            step.loss = runner.step([rehearsal.rank_batch(plan, rank, index)]).loss
        finally:
            for handle in handles:
                handle.remove()
        step.gradients = {name: _keep(full_tensor(one)) for name, one in runner.weights.gradients().items()}
        parts = runner.model.state_dict()
        step.weights = {name: _keep(full_tensor(parts[name])) for name, _ in runner.model.named_parameters()}
        found.append(step)
    return found


def _note(name: str, step: RecordedStep, module: nn.Module, inputs: object, output: object) -> None:
    # A pipeline first looks at shapes, without gradients; that is no part of the step.
    if isinstance(output, Tensor) and torch.is_grad_enabled() and output.is_floating_point():
        step.outputs.setdefault(name, []).append(_keep(full_tensor(output)))
        step.order.append(name)


def _keep(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32, copy=True)


def place(own: Sequence[int], all_: Sequence[int], plan: ParallelPlan, rank: int, heads: int) -> Place | None:
    """Where a rank's output lies in that of one device; None where its shape does not tell.

    Args:
        own: shape of the rank's.
        all_: shape of one device's.
        plan: how ranks share the work.
        heads: attention heads, which tensor ranks divide.
    """
    if len(own) != len(all_):
        return None
    at, found = plan.coordinate(rank), []
    token = at.context * plan.tensor + at.tensor if plan.sequence else at.context
    for dim, (part, size) in enumerate(zip(own, all_, strict=True)):
        ways = [(1, 0)]
        if dim == 0 and size == SAMPLES:
            ways.append((plan.data, plan.data_rank(rank)))
        elif dim == len(all_) - 1 or (size == heads and plan.tensor > 1):
            ways.append((plan.tensor, at.tensor))
            ways.append((heads, at.tensor * heads // plan.tensor))  # several ranks share a head of keys and values
        else:
            ways += [(plan.tokens, token), (plan.context, at.context)]
        way = next((index for count, index in ways if part * count == size), None)
        if way is None:
            return None
        found.append(slice(way * part, (way + 1) * part))
    return tuple(found)
