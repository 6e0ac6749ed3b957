"""Makes random bits from numbers alone, the same on any rank, device and number of threads, and rounds fp32 by them.

Each row has a key of 64 bits, mixed from the seed, its table's name, its place in the table, and the step (0 for
initial values). Bits of a column come from that key and the column. The mixers are the finalisers of SplitMix64
(Steele, Lea, Flood, OOPSLA 2014) and MurmurHash3.

Stochastic rounding makes of a number between two neighbours of the smaller format the upper one with a probability of
its distance to the lower one, so updates far below the spacing still add up.

Shape letters: U rows, D columns.
"""

import hashlib

import torch
from torch import Tensor

from nemo_vfm.sparse.row_fingerprint import mix64_

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # odd constants of 64 and 32 bits, as signed numbers
_GOLDEN_32, _FIRST_32, _SECOND_32 = 0x9E3779B9 - 2**32, 0x85EBCA6B - 2**32, 0xC2B2AE35 - 2**32


def name_salt(seed: int, name: str) -> int:
    """64 bits of a seed and a table's name, as a number that int64 can hold."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little", signed=True)


def row_keys(salts_U: Tensor, rows_U: Tensor, step: int) -> Tensor:
    """A key a row: int64 of 64 random bits.

    Args:
        salts_U: `name_salt` of each row's table, int64.
        rows_U: its place in that table, int64.
        step: of the optimizer.
    """
    step_bits = (step * _GOLDEN + 2**63) % 2**64 - 2**63
    return mix64_(mix64_(salts_U + step_bits) + rows_U * _GOLDEN)


def column_bits(keys_U: Tensor, width: int) -> Tensor:
    """Random bits of each number of the rows: int32, (U, D)."""
    columns_D = torch.arange(width, dtype=torch.int32, device=keys_U.device) * _GOLDEN_32
    low_U, high_U = keys_U.to(torch.int32), (keys_U >> 32).to(torch.int32)
    return _mix32_(_mix32_(low_U[:, None] + columns_D) ^ high_U[:, None])


def uniform(keys_U: Tensor, width: int) -> Tensor:
    """Numbers in (-1, 1), 24 bits each: fp32, (U, D)."""
    bits_UD = (column_bits(keys_U, width) >> 8) & 0xFFFFFF
    return (bits_UD.float() * 2 + 1) * 2.0**-24 - 1


def _mix32_(x: Tensor) -> Tensor:
    """In place; shifts copy the sign, the masks make them logical, and products wrap."""
    x ^= (x >> 16) & 0xFFFF
    x *= _FIRST_32
    x ^= (x >> 13) & 0x7FFFF
    x *= _SECOND_32
    x ^= (x >> 16) & 0xFFFF
    return x


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
