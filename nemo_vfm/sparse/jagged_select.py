"""Selects rows of a jagged tensor without padding them, forward and backward.

Shape letters: B rows, M selected rows, N values, K selected values.
"""

import torch
from torch import Tensor


def row_offsets(lengths_B: Tensor) -> Tensor:
    """Where each row begins, and after them where the last one ends: int64, B + 1 numbers."""
    return torch.nn.functional.pad(lengths_B.cumsum(0, dtype=torch.int64), (1, 0))


def slice_positions(starts_M: Tensor, lengths_M: Tensor, num_values: int | None = None) -> Tensor:
    """The positions starts[m] + k of all k < lengths[m], slice after slice: int64, K numbers.

    Args:
        num_values: K, where the caller knows it; another number gives wrong positions or fails. Without it a device
            waits here for the sum of the lengths, and `torch.compile` breaks its graph.
    """
    offsets = row_offsets(lengths_M)
    total = int(offsets[-1]) if num_values is None else num_values
    # From value to value the position goes up by one, and jumps where a slice begins; jumps of empty slices fall on one
    # place and add up. The running sum of it takes a small part of the time of repeat_interleave on a CPU.
    shift_M = starts_M - offsets[:-1]
    jumps = torch.diff(shift_M, prepend=shift_M.new_zeros(1))
    steps = shift_M.new_ones(total + 1).index_add_(0, offsets[:-1], jumps)
    return steps[:total].cumsum_(0).sub_(1)


def jagged_index_select(
    values_N: Tensor, lengths_B: Tensor, rows_M: Tensor, num_values: int | None = None
) -> tuple[Tensor, Tensor]:
    """Values and lengths of the rows `rows_M`, in that order; a row may come many times or never (RecD's O6).

    With l' = l[rows] and o' = cumsum(l'), value q of the result belongs to the selected row i with
    o'[i] <= q < o'[i+1], and is value o[rows[i]] + q - o'[i] of the input. The gradient of a value of the input is the
    sum over its copies.

    Args:
        values_N: (N, ...), of any dtype.
        num_values: see `slice_positions`.

    Raises:
        IndexError: a row is not among the B (on a CPU; another device fails in its own way).
    """
    starts_M = row_offsets(lengths_B)[:-1].index_select(0, rows_M)
    lengths_M = lengths_B.index_select(0, rows_M)
    return values_N.index_select(0, slice_positions(starts_M, lengths_M, num_values)), lengths_M
