# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Multiplies quantised matrices: in float32 on any device, or by torch's `scaled_mm` where the hardware has it."""

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, scaled_mm

from nemo_vfm.parallel.fp8.quantise import Quantised, dequantise


def product(a: Quantised, b: Quantised, *, fast: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """A B^T by the hardware where it can, else emulated.

    Args:
        a: (M, K).
        b: (N, K).
        fast: see `native_product`.
        dtype: of the result.
    """
    if is_native(a.elements.device) and _is_outer(a) and _is_outer(b):
        return native_product(a, b, fast=fast, dtype=dtype)
    return emulated_product(a, b, torch.promote_types(dtype, torch.float32)).to(dtype)


def is_native(device: torch.device) -> bool:
    """Whether a device has FP8 products. torch's on a CPU are slower than the emulation, and equal."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def emulated_product(a: Quantised, b: Quantised, dtype: torch.dtype = torch.float32) -> Tensor:
    """A B^T, summed in float32 or float64.

    One scale for a tensor or a row is multiplied in afterwards: products of elements are exact in float32, so only the
    order of the sums differs from hardware. Blocks are dequantised first; with powers of two that is exact as well.

    Args:
        a: (M, K).
        b: (N, K).
        dtype: of the sums. Those of float64 have no rounding that depends on their order.
    """
    with torch.autocast(a.elements.device.type, enabled=False):  # it would multiply in bf16
        if _is_outer(a) and _is_outer(b):
            return a.elements.to(dtype) @ b.elements.to(dtype).T * a.scale.to(dtype) * b.scale.to(dtype).reshape(-1)
        return dequantise(a).to(dtype) @ dequantise(b).to(dtype).T


def native_product(a: Quantised, b: Quantised, *, fast: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    """A B^T by `scaled_mm`, for one scale of the tensor or of each row.

    Args:
        a: (M, K); K and N divisible by 16.
        b: (N, K), not E5M2 where `a` is.
        fast: sum in the tensor cores' own, shorter numbers, as is usual for the forward product alone.
        dtype: of the result.

    Raises:
        ValueError: the scales are of blocks.
    """
    if not (_is_outer(a) and _is_outer(b)):
        raise ValueError("scaled_mm is used for one scale of a tensor or a row; blocks are emulated")
    kind = ScalingType.TensorWise if a.scale.dim() == 0 else ScalingType.RowWise
    a_scale, b_scale = a.scale.float(), b.scale.float()
    if a_scale.dim():
        a_scale, b_scale = a_scale.reshape(-1, 1), b_scale.reshape(1, -1)
    # The hardware takes rows of A and of B; a transposed operand is copied so.
    rows, columns = a.elements.contiguous(), b.elements.contiguous().T
    found: Tensor = scaled_mm(
        rows, columns, a_scale, kind, b_scale, kind, output_dtype=dtype, use_fast_accum=fast
    )  # fmt: skip
    return found


def _is_outer(q: Quantised) -> bool:
    """Whether scales do not change along the sum."""
    return q.scale.dim() == 0 or q.scale.shape == (len(q.elements), 1)
