# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Multiplies quantised matrices: in float32 on any device, or by torch's `scaled_mm` where the hardware has it."""

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, scaled_mm

from nemo_vfm.parallel.fp8.quantise import Quantised, dequantise


def emulated_product(a: Quantised, b: Quantised) -> Tensor:
    """A B^T in float32.

    One scale for a tensor or a row is multiplied in afterwards: products of elements are exact in float32, so only the
    order of the sums differs from hardware. Blocks are dequantised first; with powers of two that is exact as well.

    Args:
        a: (M, K).
        b: (N, K).
    """
    with torch.autocast(a.elements.device.type, enabled=False):  # it would multiply in bf16
        if _is_outer(a) and _is_outer(b):
            return a.elements.float() @ b.elements.float().T * a.scale * b.scale.reshape(-1)
        return dequantise(a) @ dequantise(b).T


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
    a_scale, b_scale = (a.scale.reshape(-1, 1), b.scale.reshape(1, -1)) if a.scale.dim() else (a.scale, b.scale)
    product: Tensor = scaled_mm(
        a.elements, b.elements.T, a_scale, kind, b_scale, kind, output_dtype=dtype, use_fast_accum=fast
    )
    return product


def _is_outer(q: Quantised) -> bool:
    """Whether scales do not change along the sum."""
    return q.scale.dim() == 0 or q.scale.shape == (len(q.elements), 1)
