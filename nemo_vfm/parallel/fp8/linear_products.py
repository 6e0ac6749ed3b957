# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
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
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.fp8_product import product
from nemo_vfm.parallel.fp8.operand_split import OperandSplit
from nemo_vfm.parallel.fp8.operand_stats import OperandStats
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Granularity, Quantised, quantise, quantise_by

_GRANULARITY: dict[str, Granularity] = {"current": "tensor", "rowwise": "row", "block": "1x128", "mxfp8": "mx"}


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
    """

    spec: Fp8
    history: AmaxHistory | None = None
    split: OperandSplit = field(default_factory=OperandSplit)
    is_training: bool = True
    stats: OperandStats | None = None
    partial_gradient: dist.ProcessGroup | None = None

    def by_row(self, x: Tensor, role: str) -> Quantised:
        """An operand of a product that sums over its last dimension."""
        found = self._delayed(x, role, self.history) if self.history else self._quantised(x, role, turned=False)
        if self.stats is not None:
            self.stats.note(role, x, found)
        return found

    def turned(self, x: Tensor, by_row: Quantised, role: str) -> Quantised:
        """The transposed operand, for a product that sums over the first dimension."""
        if by_row.scale.dim() == 0:
            return Quantised(by_row.elements.T, by_row.scale)
        if self.spec.recipe == "block" and role == "weight":
            return Quantised(by_row.elements.T, by_row.scale.T)
        return self._quantised(x.T, role, turned=True)

    def _delayed(self, x: Tensor, role: str, history: AmaxHistory) -> Quantised:
        if self.is_training:
            history.see(role, x)
        return quantise_by(x, history.factor_for(role, x.device), self._dtype(role))

    def _quantised(self, x: Tensor, role: str, *, turned: bool) -> Quantised:
        granularity = "128x128" if self.spec.recipe == "block" and role == "weight" else _GRANULARITY[self.spec.recipe]
        whole = partial(self.split.whole_amax, role=role, granularity=granularity, turned=turned)
        return quantise(x, granularity, self._dtype(role), pow2=self.spec.scales_are_pow2, whole=whole)

    def _dtype(self, role: str) -> torch.dtype:
        return E5M2 if role == "gradient" and self.spec.gradients_in_e5m2 else E4M3


def products(x: Tensor, weight: Tensor, operands: Operands) -> Tensor:
    """X W^T in FP8, in the dtype of x.

    Args:
        x: (..., K). Rows of zeros pad it: they change no scale and no sum.
        weight: (N, K), in the dtype of x.
        operands: how.
    """
    rows = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)
    surplus = -len(rows) % DIVISOR[operands.spec.recipe]
    found: Tensor = _Products.apply(F.pad(rows, (0, 0, 0, surplus)), weight, operands)  # type: ignore[no-untyped-call]
    return found[: len(rows)].reshape(*x.shape[:-1], -1)


class _Products(torch.autograd.Function):
    """(rows, K) and (N, K) to (rows, N)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, operands: Operands) -> Tensor:
        ctx.operands, by_row = operands, operands.by_row(x, "input")
        # What the sum over rows will need of x; nothing else of it is kept. An attribute of ctx would live on where the
        # block is computed again in backward.
        kept = operands.turned(x, by_row, "input") if weight.requires_grad else ()
        ctx.save_for_backward(weight, *kept)
        return product(by_row, operands.by_row(weight, "weight"), fast=True, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (grad,), (weight, *kept), operands = gradients, ctx.saved_tensors, ctx.operands
        ranks = operands.partial_gradient
        if ranks is not None:
            grad = grad.contiguous().clone()
            dist.all_reduce(grad, group=ranks)
        by_row = operands.by_row(grad, "gradient")
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            turned = operands.turned(weight, operands.by_row(weight, "weight"), "weight")
            grad_x = _share(product(by_row, turned, dtype=grad.dtype), ranks)
        if kept:
            turned = operands.turned(grad, by_row, "gradient")
            grad_w = _share(product(turned, Quantised(*kept), dtype=weight.dtype), ranks)
        return grad_x, grad_w, None


def _share(whole: Tensor, ranks: dist.ProcessGroup | None) -> Tensor:
    """What a rank gives of a sum that each of them has computed whole."""
    return whole if ranks is None else whole / ranks.size()
