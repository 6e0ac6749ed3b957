# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Replaces modules of a model by ones that compute the same function in fewer and quicker operations.

At a token a step, a small model's time goes into reading its weights and into starting operations.
Shape letters: R rows, I inputs, O outputs, D width, F width of a perceptron.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.device import has_fast_bf16
from nemo_vfm.models.blocks.decoder import Perceptron
from nemo_vfm.models.blocks.norm import RMSNorm


class PackedLinear(nn.Module):
    """x W^T + b with a W that only oneDNN can read.

    MKL, which torch takes for fp32, has kernels for 1, for 2 to 15 and for more rows, which differ in the last bits.
    oneDNN's rows agree from 2 rows on. Sixteen rows of matrices that come from memory take 0.85 of the time (AVX-512,
    one thread, torch 2.13, 512 x 1408, 2026-11).

    Args:
        weight_OI: is copied.
        bias_O: None for none.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach())
        self._bias = None if bias_O is None else bias_O.detach()

    def forward(self, x: Tensor) -> Tensor:
        """(..., R, O) of (..., R, I)."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


class PackedGate(nn.Module):
    """A perceptron with a gate whose first two matrices are one, so that they are read in one go.

    Args:
        given: its weights are copied.
    """

    def __init__(self, given: Perceptron) -> None:
        super().__init__()
        assert given.gate is not None, "only a perceptron with a gate is replaced"
        self._first = PackedLinear(torch.cat([given.gate.weight, given.up.weight]))
        self._down = PackedLinear(given.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(..., R, D): W_down (silu(W_gate x) * W_up x)."""
        gate, up = self._first(x).chunk(2, dim=-1)
        y: Tensor = self._down(F.silu(gate).mul_(up))
        return y


class FusedRMSNorm(nn.Module):
    """`RMSNorm` as one operation.

    Args:
        given: its weight is shared.
    """

    def __init__(self, given: RMSNorm) -> None:
        super().__init__()
        self._weight, self._eps = given.weight, given.eps

    def forward(self, x: Tensor) -> Tensor:
        """Unit root mean square over the last dimension, times the weight."""
        return F.rms_norm(x, self._weight.shape, self._weight, self._eps)


def pack_modules(model: nn.Module) -> None:
    """Replace what can be, one module at a time. On a GPU everything stays."""
    for name, child in list(model.named_children()):
        if (packed := _packed(child)) is None:
            pack_modules(child)
        else:
            setattr(model, name, packed)


def _packed(module: nn.Module) -> nn.Module | None:
    if isinstance(module, Perceptron) and module.gate is not None and _is_packable(module.gate.weight):
        return PackedGate(module)
    if isinstance(module, nn.Linear) and _is_packable(module.weight):
        return PackedLinear(module.weight, module.bias)
    if isinstance(module, RMSNorm) and module.weight.dtype == torch.float32:  # else the order of rounding differs
        return FusedRMSNorm(module)
    return None


def _is_packable(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and has_fast_bf16())
