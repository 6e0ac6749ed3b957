"""Defers the weight gradients of linears: they are computed on request instead of in the backward pass.

A zero-bubble schedule (Qi et al. 2024, arXiv 2401.10241) sends the gradient of its input on at once and fills idle time
with the gradients of weights. torch's own split of a stage's graph fails where a conditioning vector is used in several
places, as adaLN's is. The weights' pass then runs through a graph that was freed (torch 2.13, "Trying to backward
through the graph a second time"). So the split is made at each linear, where the two parts are easy to separate.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Work = Callable[[], None]


class Later:
    """What has been put off."""

    def __init__(self) -> None:
        self._work: list[Work] = []

    def add(self, work: Work) -> None:
        """Put one thing off."""
        self._work.append(work)

    def taken(self) -> Work:
        """All of it as one, for whoever does it; what comes from now on is not part of it."""
        work, self._work = self._work, []
        return partial(_do, work)


def put_off(blocks: Iterable[nn.Module], later: Later) -> None:
    """Let every linear of the blocks put its weights' gradients off."""
    for block in blocks:
        for module in block.modules():
            if isinstance(module, nn.Linear):
                linear: Any = module
                linear.forward = partial(_forward, linear, linear.forward, later)


def _do(work: list[Work]) -> None:
    for one in work:
        one()


def _forward(module: nn.Module, forward: Callable[[Tensor], Tensor], later: Later, x: Tensor) -> Tensor:
    own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
    if not torch.is_grad_enabled() or not own:  # of a frozen linear there is nothing to put off
        return forward(x)
    output: Tensor = _PutOff.apply(x, forward, later, *own)  # type: ignore[no-untyped-call]
    return output


class _PutOff(torch.autograd.Function):
    """A function with a graph of its own: backward goes through it to the input, and later to the weights."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forward: Callable[[Tensor], Tensor], later: Later, *weights: Tensor
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
        ctx.later.add(partial(_accumulate, output, weights, grads[0]))
        ctx.own = ctx.output = None
        return found, None, None, *(None for _ in weights)


def _accumulate(output: Tensor, weights: tuple[Tensor, ...], grad: Tensor) -> None:
    learning = [weight for weight in weights if weight.requires_grad]
    for weight, found in zip(learning, torch.autograd.grad(output, learning, grad), strict=True):
        weight.grad = found if weight.grad is None else weight.grad + found
