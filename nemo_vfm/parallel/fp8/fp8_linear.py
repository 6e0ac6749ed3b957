# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Computes a linear's three products in FP8: Y = X W^T forward, dX = dY W and dW = dY^T X backward.

Each product sums over another dimension, so recipes whose scales follow the sum quantise an operand once for each from
the full numbers; a transposed copy would carry the wrong scales.
"""

from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.core.fp8 import DIVISOR, Fp8
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.fp8_product import emulated_product
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Granularity, Quantised, quantise, quantise_by

_GRANULARITY: dict[str, Granularity] = {"current": "tensor", "rowwise": "row", "block": "1x128", "mxfp8": "mx"}


class Fp8Linear(nn.Linear):
    """`nn.Linear` in FP8. With delayed scaling it has a history for its input, its weight and its output's gradient.

    Args:
        in_features: K, divisible by 16, 32 or 128 by the recipe.
        out_features: N, likewise.
        bias: added in the input's dtype.
        spec: how.
        device: of the parameters.

    Raises:
        ValueError: a size is not divisible.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, spec: Fp8,
        device: torch.device | str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, device=device)
        require_divisible(spec, in_features=in_features, out_features=out_features)
        self.spec = spec
        if spec.recipe == "delayed":
            gradient = E5M2 if spec.gradients_in_e5m2 else E4M3
            self.history = nn.ModuleDict({
                role: AmaxHistory(spec.history, dtype, spec.margin)
                for role, dtype in (("input", E4M3), ("weight", E4M3), ("gradient", gradient))
            })  # fmt: skip

    @classmethod
    def of(cls, linear: nn.Linear, spec: Fp8) -> "Fp8Linear":
        """A linear with the same parameters; none is drawn."""
        found = cls(linear.in_features, linear.out_features, linear.bias is not None, spec=spec, device="meta")
        found.weight, found.bias = linear.weight, linear.bias
        return found.train(linear.training).to(linear.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        """X W^T + b, in the dtype of autocast where it is on, else in that of x.

        Args:
            x: (..., K); the number of rows is divisible by the recipe's divisor, too.
        """
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rows = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)
        require_divisible(self.spec, tokens=len(rows))
        history = self.history if self.spec.recipe == "delayed" else None
        product: Tensor = _Products.apply(rows, self.weight, self.spec, history)  # type: ignore[no-untyped-call]
        product = product.to(x.dtype).reshape(*x.shape[:-1], -1)
        return product if self.bias is None else product + self.bias.to(x.dtype)


def require_divisible(spec: Fp8, **sizes: int) -> None:
    """Raise ValueError where a size is not what the recipe's products need."""
    for name, size in sizes.items():
        if size % DIVISOR[spec.recipe]:
            raise ValueError(
                f"{name} is {size}, and products in FP8 by recipe={spec.recipe} need multiples of "
                f"{DIVISOR[spec.recipe]}; pad it, or leave this linear in bf16"
            )


class _Products(torch.autograd.Function):
    """(rows, K) and (N, K) to (rows, N)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, spec: Fp8, history: nn.ModuleDict | None) -> Tensor:
        ctx.spec, ctx.history = spec, history
        by_row = _operand(spec, x, "input", history)
        # What the sum over rows will need of x; nothing else of it is kept.
        ctx.saved = _turned(spec, x, by_row, "input") if weight.requires_grad else None
        ctx.save_for_backward(weight)
        return emulated_product(by_row, _operand(spec, weight, "weight", history))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (grad,), (weight,), spec = gradients, ctx.saved_tensors, ctx.spec
        by_row = _operand(spec, grad, "gradient", ctx.history)
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            turned = _turned(spec, weight, _operand(spec, weight, "weight", ctx.history), "weight")
            grad_x = emulated_product(by_row, turned).to(grad.dtype)
        if ctx.saved is not None:
            grad_w = emulated_product(_turned(spec, grad, by_row, "gradient"), ctx.saved).to(weight.dtype)
        return grad_x, grad_w, None, None


def _operand(spec: Fp8, x: Tensor, role: str, history: nn.ModuleDict | None) -> Quantised:
    """Of a product that sums over the last dimension."""
    dtype = E5M2 if role == "gradient" and spec.gradients_in_e5m2 else E4M3
    if history is not None:
        kept = history[role]
        assert isinstance(kept, AmaxHistory)
        kept.see(x)
        return quantise_by(x, kept.factor, dtype)
    granularity = "128x128" if spec.recipe == "block" and role == "weight" else _GRANULARITY[spec.recipe]
    return quantise(x, granularity, dtype, pow2=spec.scales_are_pow2)


def _turned(spec: Fp8, x: Tensor, by_row: Quantised, role: str) -> Quantised:
    """The transposed matrix, for a product that sums over the first dimension."""
    if by_row.scale.dim() == 0:
        return Quantised(by_row.elements.T, by_row.scale)
    if spec.recipe == "block" and role == "weight":
        return Quantised(by_row.elements.T, by_row.scale.T)
    return _operand(spec, x.T, role, None)
