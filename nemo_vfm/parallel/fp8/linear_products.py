"""Computes a linear's three products in FP8: Y = X W^T forward, dX = dY W and dW = dY^T X backward.

Each product sums over another dimension, so recipes whose scales follow the sum quantise an operand once for each from
the full numbers; a transposed copy would carry the wrong scales.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.core.fp8 import DIVISOR, Fp8
from nemo_vfm.core.optional import available
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.fp8_product import product
from nemo_vfm.parallel.fp8.operand_split import OperandSplit
from nemo_vfm.parallel.fp8.operand_stats import OperandStats
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Granularity, Quantised, quantise, quantise_by

_GRANULARITY: dict[str, Granularity] = {
    "current": "tensor", "delayed": "tensor", "rowwise": "row", "block": "1x128", "mxfp8": "mx",
}  # fmt: skip
_TRITON = available("triton")


@dataclass(frozen=True, slots=True)
class Operands:
    """How a linear's operands are quantised.

    Args:
        spec: the recipe.
        history: of delayed scaling.
        split: the ranks that have other parts of them.
        is_training: whether the history notes what it sees.
        stats: counts what is lost; None where nobody looks.
        partial_gradient: ranks that have the whole input each, and a part of the sum that is the output's gradient.
        weight_is_copy: of the weight, which is freed with the forward pass; else it is there for backward anyway, or
            its ranks gather it again.
    """

    spec: Fp8
    history: AmaxHistory | None = None
    split: OperandSplit = field(default_factory=OperandSplit)
    is_training: bool = True
    stats: OperandStats | None = None
    partial_gradient: dist.ProcessGroup | None = None
    weight_is_copy: bool = False

    def copies(
        self, x: Tensor, role: str, *, by_row: bool = True, turned: bool = False
    ) -> tuple[Quantised | None, Quantised | None]:
        """An operand for the product that sums over its last dimension, and its transpose for that over the first.

        Args:
            x: a matrix.
            role: input, weight or gradient.
            by_row: make the first.
            turned: make the second.
        """
        make = self._fused if fuses(x) and self.spec.recipe != "mxfp8" else self._apart
        found = make(x, role, by_row, turned)
        if self.stats is not None and found[0] is not None:
            self.stats.note(role, x, found[0])
        return found

    def note(self, x: Tensor, role: str) -> None:
        """Count what is lost of an operand that other kernels quantise."""
        if self.stats is not None:
            self.stats.note(role, x, _made(self._apart(x, role, True, False)[0]))

    def whole_gradient(self, grad: Tensor) -> Tensor:
        """The output's gradient, summed where ranks have parts of the sum."""
        if self.partial_gradient is not None:
            grad = grad.contiguous().clone()
            dist.all_reduce(grad, group=self.partial_gradient)
        return grad

    def _fused(self, x: Tensor, role: str, by_row: bool, turned: bool) -> tuple[Quantised | None, Quantised | None]:
        from nemo_vfm.parallel.fp8.triton_casts import amax_of_rows, amax_of_tensor, cast

        x, granularity, factor = x.contiguous(), self._granularity(role), None
        amax: tuple[Tensor, Tensor] | None = None
        if self.history is not None:
            if self.is_training:
                self.history.see(role, amax_of_tensor(x))
            factor = self.history.factor_for(role, x.device)
        elif granularity == "tensor":
            amax = (self.split.whole_amax(amax_of_tensor(x), role, granularity),) * 2
        elif granularity == "row":
            rows, columns = amax_of_rows(x)
            rows = self.split.whole_amax(rows, role, granularity) if by_row else rows
            amax = rows, self.split.whole_amax(columns, role, granularity, turned=True) if turned else columns
        return cast(
            x, granularity, self.dtype(role), amax, factor=factor, pow2=self.spec.scales_are_pow2, by_row=by_row,
            turned=turned,
        )  # fmt: skip

    def _apart(self, x: Tensor, role: str, by_row: bool, turned: bool) -> tuple[Quantised | None, Quantised | None]:
        """By torch's operators, on any device."""
        same = self._granularity(role) in ("tensor", "128x128")  # both copies have the same scales
        first = None
        if by_row or same:
            first = self._delayed(x, role, self.history) if self.history else self._quantised(x, role, turned=False)
        second = None
        if turned and first is not None and same:
            second = Quantised(first.elements.T, first.scale.T if first.scale.dim() else first.scale)
        elif turned:
            second = self._quantised(x.T, role, turned=True)
        return first if by_row else None, second

    def _delayed(self, x: Tensor, role: str, history: AmaxHistory) -> Quantised:
        if self.is_training:
            history.see(role, x.detach().abs().max())
        return quantise_by(x, history.factor_for(role, x.device), self.dtype(role))

    def _quantised(self, x: Tensor, role: str, *, turned: bool) -> Quantised:
        granularity = self._granularity(role)
        whole = partial(self.split.whole_amax, role=role, granularity=granularity, turned=turned)
        return quantise(x, granularity, self.dtype(role), pow2=self.spec.scales_are_pow2, whole=whole)

    def _granularity(self, role: str) -> Granularity:
        return "128x128" if self.spec.recipe == "block" and role == "weight" else _GRANULARITY[self.spec.recipe]

    def dtype(self, role: str) -> torch.dtype:
        """Of an operand's elements."""
        return E5M2 if role == "gradient" and self.spec.gradients_in_e5m2 else E4M3


def products(x: Tensor, weight: Tensor, operands: Operands) -> Tensor:
    """X W^T in FP8, in the dtype of x.

    Args:
        x: (..., K). Rows of zeros pad it: they change no scale and no sum.
        weight: (N, K), in the dtype of x.
        operands: how.
    """
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
        by_row, turned = operands.copies(x, "input", turned=ctx.needs_input_grad[1])
        # A copy of the weight in 16 bits would be kept for backward: the quantised one is half as large.
        weight_by_row, weight_turned = operands.copies(
            weight, "weight", turned=operands.weight_is_copy and ctx.needs_input_grad[0]
        )
        # What the sum over rows will need of x; nothing else of it is kept. An attribute of ctx would live on where the
        # block is computed again in backward.
        ctx.save_for_backward(*(turned or (None, None)), *(weight_turned or (weight, None)))
        return product(_made(by_row), _made(weight_by_row), fast=True, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (grad,), (elements, scale, weight, weight_scale), operands = gradients, ctx.saved_tensors, ctx.operands
        grad = operands.whole_gradient(grad)
        needs_x, needs_w, _ = ctx.needs_input_grad
        looked_at = operands.stats is not None
        by_row, grad_turned = operands.copies(grad, "gradient", by_row=needs_x or looked_at, turned=needs_w)
        grad_x = grad_w = None
        if needs_x:
            turned = Quantised(weight, weight_scale)
            if weight_scale is None:
                turned = _made(operands.copies(weight, "weight", by_row=False, turned=True)[1])
            grad_x = share(product(_made(by_row), turned, dtype=grad.dtype), operands)
        if grad_turned is not None:
            grad_w = share(product(grad_turned, Quantised(elements, scale), dtype=grad.dtype), operands)
        return grad_x, grad_w, None


def _made(copy: Quantised | None) -> Quantised:
    assert copy is not None
    return copy


def fuses(x: Tensor) -> bool:
    """Whether Triton quantises a matrix; its kernels are right for bf16 alone."""
    return _TRITON and x.is_cuda and x.dtype == torch.bfloat16


def share(whole: Tensor, operands: Operands) -> Tensor:
    """What a rank gives of a sum that each of some ranks has computed whole."""
    ranks = operands.partial_gradient
    return whole if ranks is None else whole / ranks.size()
