"""Computes linears and norms of a CPU in fewer and quicker operations than their modules do.

At a token a step, a small model's time goes into reading its weights and into starting operations: each finds its code
and its data outside the caches, where the weights have just been, and takes about 10 us (2026-11).
Shape letters: R rows, I inputs, O outputs, D width.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.device import has_fast_bf16
from nemo_vfm.core.seed import generator
from nemo_vfm.models.blocks.layers import RMSNorm, RMSNorm1p

After = Literal["none", "swish", "add", "mul"]


class PackedLinear(nn.Module):
    """x W^T + b with a W that only oneDNN can read.

    MKL, which torch takes for fp32, has kernels for 1, for 2 to 15 and for more rows, which differ in the last bits.
    oneDNN's rows agree from 2 rows on, and those of many matrices from 1 on. Sixteen rows of matrices that come from
    memory take 0.85 of the time (AVX-512, one thread, torch 2.13, 512 x 1408, 2026-11).

    Args:
        weight_OI: is copied.
        bias_O: None for none.
        total: adds up the products of ranks that have some inputs each; None where this one has all.
    """

    def __init__(
        self, weight_OI: Tensor, bias_O: Tensor | None = None, total: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        assert bias_O is None or total is None, "a bias would be added once a rank"
        self._total = total
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach())
        self._bias = None if bias_O is None else bias_O.detach()
        self._doubles_one_row = False
        x_2I = torch.rand(2, weight_OI.shape[1], dtype=weight_OI.dtype, generator=generator(0, "rows"))
        self._doubles_one_row = not torch.equal(self._product(x_2I[:1]), self._product(x_2I)[:1])

    def forward(self, x: Tensor, other: Tensor | None = None, after: After = "none") -> Tensor:
        """(..., R, O) of (..., R, I); one row has the bits that it has among others.

        Args:
            x: of any leading dimensions.
            other: in the shape of the result, for "add" and "mul".
            after: what is done in the same operation; swish is silu.
        """
        if self._total is not None:
            y = self._total(self._rows(x))
            assert after in ("none", "add"), "other operations do not go through a sum"
            return y if other is None else y + other
        return self._rows(x, other, after)

    def _rows(self, x: Tensor, other: Tensor | None = None, after: After = "none") -> Tensor:
        if self._doubles_one_row and x.shape[-2] == 1:
            return self._product(_twice(x), None if other is None else _twice(other), after)[..., :1, :]
        return self._product(x, other, after)

    def _product(self, x: Tensor, other: Tensor | None = None, after: After = "none") -> Tensor:
        y: Tensor
        if other is None:
            y = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, after, [], "")
        else:
            y = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, self._bias, after)
        return y


def _twice(x_1I: Tensor) -> Tensor:
    return torch.cat([x_1I, x_1I], dim=-2)


class PackedRMSNorm(nn.Module):
    """`RMSNorm` or `RMSNorm1p` in four operations on a CPU, where torch's own takes twelve, and one on a GPU.

    With sqrt(mean(x^2) + eps) = sqrt(|x|^2 + D eps) / sqrt(D), the second root is a part of the weight.

    Args:
        given: its weight is copied.
    """

    def __init__(self, given: RMSNorm | RMSNorm1p) -> None:
        super().__init__()
        self._weight, self._eps = given.weight.detach() + isinstance(given, RMSNorm1p), given.eps
        root = math.sqrt(len(self._weight))
        self._scaled, self._least = self._weight * root, self._weight.new_tensor(math.sqrt(given.eps) * root)

    def forward(self, x: Tensor) -> Tensor:
        """Unit root mean square over the last dimension, times the weight."""
        if x.device.type != "cpu":
            return F.rms_norm(x, self._weight.shape, self._weight, self._eps)
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x / length.hypot_(self._least)).mul_(self._scaled)


def is_packable(weight: Tensor) -> bool:
    """Whether oneDNN has quick products of this weight here."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and has_fast_bf16())
