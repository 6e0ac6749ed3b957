"""Cuts a whole model down to this rank's blocks, builds pipeline stages, and defers weight gradients of their linears.

Every parameter keeps its name from one device. Blocks of other stages are removed from their `ModuleList` without
renumbering. Modules of other stages stay but lose their parameters.

A zero-bubble schedule (Qi et al. 2024, arXiv 2401.10241) sends the gradient of its input on at once and fills idle time
with the gradients of weights. torch's own split of a stage's graph fails where a conditioning vector is used in several
places, as adaLN's is. The weights' pass then runs through a graph that was freed (torch 2.13, "Trying to backward
through the graph a second time"). So the split is made at each linear, where the two parts are easy to separate.
"""

import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.plan.plan import Coordinate, ParallelPlan, shares
from nemo_vfm.parallel.plan.sharding_spec import Divisible, ShardingSpec, match_modules

Work = Callable[[], None]


@runtime_checkable
class Cuttable(Divisible, Protocol):
    """A model whose forward is `output(run_blocks(embed(..., context), context), context)`.

    `run_blocks` runs the blocks that are there and does not count on their number. Between two blocks there is one
    tensor, of the same shape and type everywhere.
    """

    def context(self, **inputs: Tensor) -> object:
        """Inputs shared by all blocks; each stage computes them from all inputs."""
        ...

    def embed(self, *inputs: Tensor, context: object) -> Tensor:
        """What goes into the first block; the inputs it names are given to it by name."""
        ...

    def run_blocks(self, x: Tensor, context: object) -> Tensor:
        """What comes out of the blocks that are here."""
        ...

    def output(self, x: Tensor, *inputs: Tensor, context: object) -> Tensor:
        """The model's output; the inputs it names are given to it by name."""
        ...


class PipelineStage(nn.Module):
    """The part of a model between two borders of the pipeline; it is told its inputs beforehand, a set a microbatch."""

    def __init__(self, part: nn.Module, index: int, num_stages: int) -> None:
        super().__init__()
        assert isinstance(part, Cuttable)
        self.part, self.index, self.is_last = part, index, index == num_stages - 1
        self.inputs: Sequence[Mapping[str, Tensor]] = ()
        self.microbatch = 0
        self.later: list[Work] | None = None  # where backward leaves the weights' gradients to another pass
        self.under: Callable[[], AbstractContextManager[object]] = nullcontext
        embed, output = (
            tuple(name for name in inspect.signature(method).parameters if name != "context")
            for method in (part.embed, part.output)
        )
        self._embed_inputs, self._output_inputs = embed, output[1:]

    def blocks(self) -> list[nn.Module]:
        """Its blocks, in their order."""
        assert isinstance(self.part, Divisible)
        return list(self.part.get_submodule(self.part.plan().blocks).children())

    def forward(self, x: Tensor | None = None) -> Tensor:
        """Run this stage on the output of the previous one; the first stage has none."""
        inputs = self.inputs[self.microbatch]
        with self.under():
            context = self.part.context(**inputs)
            if x is None:
                x = self.part.embed(**{n: inputs[n] for n in self._embed_inputs if n in inputs}, context=context)
            x = self.part.run_blocks(x, context)
            if not self.is_last:
                return x
            return self.part.output(x, **{n: inputs[n] for n in self._output_inputs if n in inputs}, context=context)


def cut(model: nn.Module, plan: ParallelPlan, at: Coordinate) -> list[range]:
    """Take out of the model what other ranks of the pipeline hold; returns which blocks each stage has."""
    how = _read_stage_spec(model)
    parts = shares(len(list(model.get_submodule(how.blocks).children())), plan.stages)
    for path, other in _instead(model, how, parts, range(at.pipeline, plan.stages, plan.pipeline)).items():
        above, _, name = path.rpartition(".")
        model.get_submodule(above)._modules[name] = other
    return parts


def stages_of(model: nn.Module, parts: Sequence[range], plan: ParallelPlan, at: Coordinate) -> list[PipelineStage]:
    """The stages of this rank, which share the modules of a model that `cut` has reduced, with these parts."""
    how = _read_stage_spec(model)
    return [
        PipelineStage(_twin(model, _instead(model, how, parts, [index])), index, plan.stages)
        for index in range(at.pipeline, plan.stages, plan.pipeline)
    ]


def params_of_every_stage(model: nn.Module) -> set[nn.Parameter]:
    """The parameters that every stage has."""
    assert isinstance(model, Divisible)
    modules = dict(model.named_modules())
    return {p for name in match_modules(model.plan().every, modules) for p in modules[name].parameters()}


def _read_stage_spec(model: nn.Module) -> ShardingSpec:
    name = type(model).__name__
    if not isinstance(model, Cuttable):
        missing = [part for part in ("plan", "context", "embed", "run_blocks", "output") if not hasattr(model, part)]
        raise UserError(f"{name} cannot be cut into pipeline stages (it has no {', '.join(missing)}); remove "
                        f"parallel.pipeline from the recipe.")  # fmt: skip
    how = model.plan()
    placed = [*match_modules((*how.first, *how.last, *how.every), dict(model.named_modules())), how.blocks]
    loose = [one for one, _ in model.named_parameters() if not any(one.startswith(f"{where}.") for where in placed)]
    if loose:
        raise UserError(f"{name} does not define which pipeline stage needs {', '.join(loose[:4])}: its plan() must "
                        f"name them under first, last or every, or have them in {how.blocks}.")  # fmt: skip
    return how


def _instead(
    model: nn.Module, how: ShardingSpec, parts: Sequence[range], stages: Collection[int]
) -> dict[str, nn.Module]:  # fmt: skip
    """What stands in the place of modules where only these stages are."""
    modules = dict(model.named_modules())
    blocks, kept = modules[how.blocks], nn.ModuleList()
    for name, block in blocks.named_children():
        if any(int(name) in parts[stage] for stage in stages):
            kept._modules[name] = block  # under its number in the whole model
    gone = () if 0 in stages else how.first
    gone += () if len(parts) - 1 in stages else how.last
    return {how.blocks: kept, **{name: _strip_weights(modules[name]) for name in match_modules(gone, modules)}}


def _strip_weights(module: nn.Module) -> nn.Module:
    """A copy without parameters and buffers: its sizes can be asked for, and it cannot be called by mistake."""
    shell = copy.copy(module)  # a deep copy would fail at the process groups of Megatron-Core's layers
    shell._parameters, shell._buffers = dict.fromkeys(module._parameters), dict.fromkeys(module._buffers)
    shell._modules = {name: None if one is None else _strip_weights(one) for name, one in module._modules.items()}
    return shell


def _twin(module: nn.Module, instead: Mapping[str, nn.Module]) -> nn.Module:
    """The same module with others in some places; what is not named is shared."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    for head in {path.partition(".")[0] for path in instead}:
        below = {path.removeprefix(f"{head}."): other for path, other in instead.items() if path.startswith(f"{head}.")}
        twin._modules[head] = instead[head] if head in instead else _twin(module.get_submodule(head), below)
    return twin


def take_deferred(later: list[Work]) -> Work:
    """All that was put off as one, for whoever does it; what comes from now on is not part of it."""
    work = later.copy()
    later.clear()

    def do() -> None:
        for one in work:
            one()

    return do


def put_off(blocks: Iterable[nn.Module], later: list[Work]) -> None:
    """Let every linear of the blocks put its weights' gradients off."""
    for block in blocks:
        for module in block.modules():
            if isinstance(module, nn.Linear):
                linear: Any = module
                linear.forward = partial(_forward, linear, linear.forward, later)


def _forward(module: nn.Module, forward: Callable[[Tensor], Tensor], later: list[Work], x: Tensor) -> Tensor:
    own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
    if not torch.is_grad_enabled() or not own:  # of a frozen linear there is nothing to put off
        return forward(x)
    output: Tensor = _PutOff.apply(x, forward, later, *own)  # type: ignore[no-untyped-call]
    return output


class _PutOff(torch.autograd.Function):
    """A function with a graph of its own: backward goes through it to the input, and later to the weights."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forward: Callable[[Tensor], Tensor], later: list[Work], *weights: Tensor
    ) -> Tensor:  # fmt: skip
        with torch.enable_grad():
            own = x.detach().requires_grad_(x.requires_grad)
            output = forward(own)
        ctx.own, ctx.output, ctx.weights, ctx.later = own, output, weights, later
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        own, output, weights = ctx.own, ctx.output, ctx.weights
        found = None
        if own.requires_grad:
            (found,) = torch.autograd.grad(output, own, grads[0], retain_graph=True)
        grad, learning = grads[0], [weight for weight in weights if weight.requires_grad]

        def accumulate() -> None:
            for weight, one in zip(learning, torch.autograd.grad(output, learning, grad), strict=True):
                weight.grad = one if weight.grad is None else weight.grad + one

        ctx.later.append(accumulate)
        ctx.own = ctx.output = None
        return found, None, None, *(None for _ in weights)
