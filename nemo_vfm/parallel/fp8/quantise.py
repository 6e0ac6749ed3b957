"""Quantises tensors to FP8 elements and their scales, by tensor, row, block of 128 or MXFP8 block of 32.

An element times its scale is the number again: scales are those that `torch.nn.functional.scaled_mm` takes. With
amax the largest magnitude that shares a scale, and max that of the format (448 in E4M3, 57,344 in E5M2), an element is
the number times max / amax, clamped to +-max and rounded to nearest even. torch before 2.12 does not clamp.

Corners, as in Transformer Engine's kernels: an amax of 0, infinity or NaN gives the scale 1; infinities become +-max
and NaN stays NaN. An amax so small that max / amax overflows (below 1.3e-36 in E4M3) takes the largest float32 instead.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

#: What shares a scale: the whole tensor, a row, or a block of (rows, columns).
Granularity = Literal["tensor", "row", "1x128", "128x128", "mx"]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MX_BLOCK = 32
_BLOCKS: dict[Granularity, tuple[int, int]] = {"1x128": (1, 128), "128x128": (128, 128), "mx": (1, MX_BLOCK)}
_BIAS = 127  # of float32's and E8M0's exponents


class Fp8Tensor(NamedTuple):
    """A tensor in FP8."""

    elements: Tensor  #: (..., K), float8
    scale: Tensor  #: by granularity: (), (..., 1), or one for each block; float32, or float8_e8m0fnu for MXFP8


def quantise(
    x: Tensor, granularity: Granularity, dtype: torch.dtype = E4M3, *, pow2: bool = False,
    whole: Callable[[Tensor], Tensor] | None = None,
) -> Fp8Tensor:  # fmt: skip
    """Quantise a tensor by its own amax.

    Args:
        x: (..., K), float32, bfloat16 or float16.
        granularity: what shares a scale.
        dtype: of the elements, E4M3 or E5M2.
        pow2: round max / amax down to a power of two; MXFP8's scales always are.
        whole: turns the amax of this rank's part into that of the whole tensor; None where a rank has all of it.

    Raises:
        ValueError: its size is not divisible by that of a block.
    """
    blocks = x.detach().float()
    if granularity in _BLOCKS:  # (..., M / rows, rows, K / columns, columns)
        rows, columns = _BLOCKS[granularity]
        if x.shape[-1] % columns or (rows > 1 and (x.dim() < 2 or x.shape[-2] % rows)):
            raise ValueError(f"a tensor of {tuple(x.shape)} cannot be cut into blocks of {rows} x {columns}")
        blocks = blocks.reshape(*x.shape[:-1], -1, columns)
        blocks = blocks if rows == 1 else blocks.reshape(*x.shape[:-2], -1, rows, *blocks.shape[-2:])
    # One for each scale, in a shape that broadcasts over the blocks.
    if granularity == "tensor":
        amax = blocks.abs().max()
    else:
        amax = blocks.abs().amax((-3, -1) if granularity == "128x128" else -1, keepdim=True)
    if whole is not None:
        amax = whole(amax)
    if granularity == "mx":
        exponent = _mx_exponent(amax, dtype)
        # 2^(127 - exponent); 1 for an exponent of 0, whose block is all but zero; NaN for 255
        power = torch.where(exponent == 0, 1.0, torch.exp2(_BIAS - exponent.float()))
        elements = _cast(blocks * torch.where(exponent == 255, torch.nan, power), dtype)
        return Fp8Tensor(elements.reshape(x.shape), _one_each(exponent, x, granularity).view(torch.float8_e8m0fnu))
    factor = factor_of(amax, dtype, pow2=pow2)
    elements = _cast(blocks * factor, dtype).reshape(x.shape)
    return Fp8Tensor(elements, _one_each(factor.reciprocal(), x, granularity))


def quantise_by(x: Tensor, factor: Tensor, dtype: torch.dtype = E4M3) -> Fp8Tensor:
    """Quantise by a factor, (), that was fixed before, as delayed scaling does; larger numbers saturate."""
    return Fp8Tensor(_cast(x.detach().float() * factor, dtype), factor.reciprocal())


def factor_of(amax: Tensor, dtype: torch.dtype, *, pow2: bool = False) -> Tensor:
    """max / amax in float32, with the corners of this module's text; with `pow2` rounded down to a power of two."""
    amax = amax.float()
    # A tensor over a tensor: torch multiplies a number by the reciprocal instead, which rounds twice.
    factor = torch.full_like(amax, torch.finfo(dtype).max) / amax
    factor = torch.where(torch.isinf(factor), torch.finfo(torch.float32).max, factor)
    factor = torch.where((amax > 0) & torch.isfinite(amax), factor, 1.0)
    # A power of two is a float32 without a mantissa.
    return (factor.view(torch.int32) & 0x7F800000).view(torch.float32) if pow2 else factor


def dequantise(quantised: Fp8Tensor) -> Tensor:
    """The numbers that elements and scales stand for, in float32 and in the shape of the elements."""
    elements, scale = quantised.elements.float(), quantised.scale.float()
    if scale.dim() == 0 or (scale.shape[-1] == 1 and scale.shape[:-1] == elements.shape[:-1]):
        return elements * scale
    for dim in range(elements.dim()):
        if scale.shape[dim] != elements.shape[dim]:
            scale = scale.repeat_interleave(elements.shape[dim] // scale.shape[dim], dim)
    return elements * scale


def _one_each(scale: Tensor, x: Tensor, granularity: Granularity) -> Tensor:
    """Without the dimensions of length 1 that broadcasting needed."""
    if granularity in ("tensor", "row"):
        return scale
    rows, columns = _BLOCKS[granularity]
    lead = x.shape[:-1] if rows == 1 else (*x.shape[:-2], x.shape[-2] // rows)
    return scale.reshape(*lead, x.shape[-1] // columns)


def _cast(scaled: Tensor, dtype: torch.dtype) -> Tensor:
    most = torch.finfo(dtype).max
    return scaled.clamp(-most, most).to(dtype)


def _mx_exponent(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """The biased exponent of amax / max, rounded up: uint8; 0 for 0, 254 for infinity, 255 for NaN.

    The quotient's bits say it exactly. A logarithm in float32 rounds a quotient just above a power of two down to it,
    and the largest element then saturates.
    """
    bits = (amax / torch.full_like(amax, torch.finfo(dtype).max)).view(torch.int32)
    exponent, mantissa = bits >> 23 & 0xFF, bits & 0x7FFFFF
    up = (mantissa != 0) & ~((exponent == 0) & (mantissa <= 0x400000))  # 2^-127 and less need no more than exponent 0
    exponent = (exponent + up).clamp(max=254)
    return torch.where(amax.isnan(), 255, exponent).to(torch.uint8)
