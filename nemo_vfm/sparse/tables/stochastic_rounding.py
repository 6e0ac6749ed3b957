"""Rounds fp32 to bf16 or fp16 at random, so that the expected value is the number itself.

A number between two neighbours of the smaller format becomes the upper one with a probability of its distance to the
lower one, so updates far below the spacing still add up. The random bits are an argument: see `counter_hash`.
"""

import torch
from torch import Tensor

_SMALLEST_NORMAL_FP16 = 2.0**-14


def round_stochastically(x: Tensor, dtype: torch.dtype, bits: Tensor) -> Tensor:
    """x in `dtype`; numbers that `dtype` can hold stay as they are.

    Args:
        x: fp32. Infinities and NaNs stay what they are; what exceeds the range becomes infinite.
        dtype: bf16 or fp16.
        bits: int32, random, of the same shape; the lowest 16 (bf16) or 13 (fp16) of each are used.
    """
    if dtype == torch.bfloat16:
        return _drop_bits(x, 16, bits).to(dtype)
    # Below the smallest normal number, fp16 has a fixed spacing of 2^-24. Adding 2^-14 moves the number to where fp32's
    # exponent gives that spacing to the upper bits.
    small = x.abs() < _SMALLEST_NORMAL_FP16
    offset = torch.where(small, _SMALLEST_NORMAL_FP16, 0.0)
    magnitude = _drop_bits(x.abs() + offset, 13, bits) - offset
    return magnitude.copysign(x).to(dtype)


def _drop_bits(x: Tensor, count: int, bits: Tensor) -> Tensor:
    """Clear the lowest bits of the mantissa after adding random ones to them; a carry raises the exponent."""
    low = (1 << count) - 1
    rounded = ((x.view(torch.int32) + (bits & low)) & ~low).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)
