"""Computes a linear in FP8, whole or split over tensor ranks: Y = X W^T, dX = dY W and dW = dY^T X.

Each product sums over another dimension, so recipes whose scales follow the sum quantise an operand once for each from
the full numbers; a transposed copy would carry the wrong scales.
"""

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.fp8 import DIVISOR, Fp8
from nemo_vfm.parallel.apply.local_shard import dtensor
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.fp8_product import product
from nemo_vfm.parallel.fp8.operand_stats import OperandStats
from nemo_vfm.parallel.fp8.operands import Operands, OperandSplit, divide_by_ranks
from nemo_vfm.parallel.fp8.quantise import Fp8Tensor
from nemo_vfm.parallel.layers.token_layout import active


class Fp8Products(nn.Module):
    """What a linear needs to compute in FP8: how, and the numbers it has seen."""

    spec: Fp8
    history: AmaxHistory | None  #: of delayed scaling
    is_on: bool = True  #: else it computes as it did before
    stats: OperandStats | None = None  #: of the step under way, where somebody looks
    whole_input: bool  #: every context rank has the whole input, such as a text, and only its own part of the gradient

    def product(
        self, x: Tensor, weight_NK: Tensor, inputs: dist.ProcessGroup | None, outputs: dist.ProcessGroup | None
    ) -> Tensor:
        """X W^T of parts (..., K) and (N, K), in autocast's dtype, else that of x; `inputs` split K, `outputs` N."""
        context = active().context
        split = OperandSplit(None if self.whole_input else context, inputs, outputs)
        stats = self.stats if self.training else None
        partial = context if self.whole_input else None
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        weight = weight_NK.to(x.dtype)
        operands = Operands(self.spec, self.history, split, self.training, stats, partial, weight is not weight_NK)
        return products(x, weight, operands)


class Fp8Linear(Fp8Products, nn.Linear):
    """`nn.Linear` in FP8. A linear becomes one by `to_fp8`; its parameters and their names stay.

    Under tensor parallelism its input and weight are DTensors. Products are of this rank's parts, with the scales of
    the whole tensors.
    """

    def forward(self, x: Tensor) -> Tensor:
        """X W^T + b of (..., K), in the dtype of autocast where it is on, else in that of x."""
        if not self.is_on:
            return super().forward(x)
        weight: Any = dtensor(self.weight)
        if weight is None:
            product = self.product(x, self.weight, None, None)
            return product if self.bias is None else product + self.bias.to(product.dtype)
        from torch.distributed.tensor import DTensor, Partial, Shard

        # Under tensor parallelism the weight, (N, K), is sharded over N in a column linear, else over K.
        split: Any = x
        (placement,), mesh = weight.placements, weight.device_mesh
        if is_column := placement.is_shard(0):  # its input is whole, and the gradient of that a part of a sum
            own_x = split.to_local(grad_placements=[Partial()])
            product = self.product(own_x, weight.to_local(), None, mesh.get_group())
        else:
            product = self.product(split.to_local(), weight.to_local(), mesh.get_group(), None)
        if self.bias is not None:
            bias: Any = self.bias
            own = bias.to_local()
            # The sum over a row linear's ranks has a bias once, and its gradient is whole on each.
            own = own if is_column or mesh.get_local_rank() == 0 else own - own.detach()
            product = product + own.to(product.dtype)
        return DTensor.from_local(product, mesh, [Shard(product.ndim - 1) if is_column else Partial()], run_check=False)


def to_fp8(linear: nn.Linear, spec: Fp8, *, whole_input: bool = False) -> Fp8Linear:
    """Make a linear compute in FP8. Hooks, adapters and parameters stay the same objects.

    Args:
        linear: with features in and out, on each rank, that are multiples of the recipe's divisor.
        spec: how.
        whole_input: see `Fp8Products`.
    """
    linear.__class__ = _in_fp8(type(linear))  # type: ignore[arg-type]
    assert isinstance(linear, Fp8Linear)
    linear.spec, linear.whole_input = spec, whole_input
    linear.history = AmaxHistory(spec) if spec.recipe == "delayed" else None
    return linear


@cache
def _in_fp8(kind: type[nn.Linear]) -> type[nn.Linear]:
    """A subclass whose forward is that of `Fp8Linear`; what else the class does, it does."""
    return Fp8Linear if kind is nn.Linear else type(f"Fp8{kind.__name__}", (Fp8Linear, kind), {})


def require_divisible(spec: Fp8, name: str, **sizes: int) -> None:
    """ValueError where features in or out, on each rank, are not a multiple of what the recipe's products need."""
    for side, size in sizes.items():
        if size % DIVISOR[spec.recipe]:
            other = "take recipe=current" if size % DIVISOR["current"] == 0 else "stay in bf16"
            raise ValueError(
                f"{name} has {size} {side} on each rank, but FP8 by recipe={spec.recipe} needs multiples of "
                f"{DIVISOR[spec.recipe]}; choose another width or parallel.tensor, or {other}"
            )


def products(x: Tensor, weight: Tensor, operands: Operands) -> Tensor:
    """X W^T of (..., K) and (N, K) in FP8, in the dtype of x. Rows of zeros pad x: they change no scale and no sum."""
    if not torch.is_grad_enabled():  # a parameter says that it needs a gradient even then
        x, weight = x.detach(), weight.detach()
    rows = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)
    surplus = -len(rows) % DIVISOR[operands.spec.recipe]
    apply = _Products.apply
    if operands.spec.kernels == "te" and x.is_cuda:
        from nemo_vfm.parallel.fp8.te import TeProducts

        apply = TeProducts.apply
    found: Tensor = apply(F.pad(rows, (0, 0, 0, surplus)), weight, operands)  # type: ignore[no-untyped-call]
    return found[: len(rows)].reshape(*x.shape[:-1], -1)


class _Products(torch.autograd.Function):
    """(rows, K) and (N, K) to (rows, N)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, operands: Operands) -> Tensor:
        ctx.operands = operands
        x_rowwise, x_columnwise = operands.quantise_both_ways(x, "input", columnwise=ctx.needs_input_grad[1])
        # A copy of the weight in 16 bits would be kept for backward: the quantised one is half as large.
        keeps_weight = operands.weight_is_copy and ctx.needs_input_grad[0]
        weight_rowwise, weight_columnwise = operands.quantise_both_ways(weight, "weight", columnwise=keeps_weight)
        # What the sum over rows will need of x; nothing else of it is kept. An attribute of ctx would live on where the
        # block is computed again in backward.
        ctx.save_for_backward(*(x_columnwise or (None, None)), *(weight_columnwise or (weight, None)))
        assert x_rowwise is not None and weight_rowwise is not None
        return product(x_rowwise, weight_rowwise, fast=True, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (grad,), (elements, scale, weight, weight_scale), operands = gradients, ctx.saved_tensors, ctx.operands
        grad = operands.reduce_gradient(grad)
        needs_x, needs_w, _ = ctx.needs_input_grad
        grad_rowwise, grad_columnwise = operands.quantise_both_ways(
            grad, "gradient", rowwise=needs_x or operands.stats is not None, columnwise=needs_w
        )
        grad_x = grad_w = None
        if needs_x:
            weight_columnwise: Fp8Tensor | None = Fp8Tensor(weight, weight_scale)
            if weight_scale is None:
                _, weight_columnwise = operands.quantise_both_ways(weight, "weight", rowwise=False, columnwise=True)
            assert grad_rowwise is not None and weight_columnwise is not None
            grad_x = divide_by_ranks(product(grad_rowwise, weight_columnwise, dtype=grad.dtype), operands)
        if grad_columnwise is not None:
            grad_w = divide_by_ranks(product(grad_columnwise, Fp8Tensor(elements, scale), dtype=grad.dtype), operands)
        return grad_x, grad_w, None
