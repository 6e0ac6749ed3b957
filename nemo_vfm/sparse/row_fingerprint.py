"""Computes a 64-bit fingerprint of each row of a jagged tensor, and compares rows exactly.

All arithmetic is that of int64, whose overflow wraps: modulo 2^64. Shape letters: B rows, N values.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_vfm.sparse.jagged import Jagged, slice_positions

# Odd 64-bit constants, as signed numbers: of the golden ratio, and the two of the splitmix64 generator.
_GOLDEN, _FIRST, _SECOND = (0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(values_N: Tensor) -> Tensor:
    """Integers that are equal exactly where all bits are: floats keep NaN, and 0 apart from -0. int64."""
    if values_N.dim() != 1:
        raise ValueError(f"values must have one dimension to be compared, but have the shape {tuple(values_N.shape)}")
    if values_N.is_floating_point():
        values_N = values_N.detach().view(_INTEGERS[values_N.element_size()])
    return values_N.to(torch.int64)


def mix64_(x: Tensor) -> Tensor:
    """In place, a bijection of int64 in which each bit of the result depends on all bits (splitmix64's last steps)."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        x.bitwise_xor_(_shift_right(x, shift)).mul_(factor)
    return x.bitwise_xor_(_shift_right(x, 31))


def fingerprints(columns: Sequence[Jagged], seed: int) -> Tensor:
    """One int64 a row over all columns; equal rows have equal ones, others nearly never.

    The values of a row count with their places: h = sum_k (2k + 1) mix(v_k + salt), mixed with the length. The salt of
    the seed stands inside the mixing: rows that collide under one seed do not under the next. A sum over a row is a
    difference of one running sum, which is exact since it wraps. The columns' are mixed one into the next.
    """
    salt = ((seed + 1) * _GOLDEN + 2**63) % 2**64 - 2**63
    total_B = torch.full_like(columns[0].lengths_B, salt, dtype=torch.int64)
    for column in columns:
        place_N = slice_positions(torch.zeros_like(column.lengths_B), column.lengths_B, len(column.values_N))
        mixed_N = mix64_(bits(column.values_N) + salt).mul_(place_N.mul_(2).add_(1))
        running = torch.nn.functional.pad(mixed_N.cumsum(0), (1, 0))
        row_B = running[column.offsets[1:]] - running[column.offsets[:-1]]
        total_B = mix64_(total_B * _FIRST + row_B + column.lengths_B * _GOLDEN)
    return total_B


def differs(columns: Sequence[Jagged], other_B: Tensor) -> Tensor:
    """Whether row i differs from row other[i] <= i, in its length or in any bit of its values, in any column: bool, B.

    A row is compared for its own length. Where the other one is shorter, that reads values of the rows after it, and
    never past the end, since the other one stands first; the lengths have told the two apart by then.
    """
    different_B = torch.zeros_like(other_B, dtype=torch.bool)
    for column in columns:
        different_B |= column.lengths_B != column.lengths_B[other_B]
        there_N = slice_positions(column.offsets[:-1][other_B], column.lengths_B, len(column.values_N))
        values_N = bits(column.values_N)
        # index_select takes half of the time of values_N[there_N].
        wrong = (values_N.index_select(0, there_N) != values_N).nonzero().squeeze(1)
        different_B[torch.searchsorted(column.offsets, wrong, right=True) - 1] = True
    return different_B


def _shift_right(x: Tensor, by: int) -> Tensor:
    """The bits moved right and filled with zeros; torch fills with the sign."""
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)
