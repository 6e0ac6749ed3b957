"""Stores histories that shift from sample to sample as windows of one buffer (RecD's partial duplicates).

Shape letters: B rows, N values of all rows, K values of the buffer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.sparse.jagged import Jagged, slice_positions
from nemo_vfm.sparse.row_fingerprint import bits, mix64_

#: Odd, so that it has an inverse modulo 2^64; both as signed 64-bit numbers.
_BASE = 0x5851F42D4C957F2D
_INVERSE = (pow(_BASE, -1, 2**64) + 2**63) % 2**64 - 2**63


@dataclass(frozen=True, eq=False)
class WindowedRows:
    """Rows as windows of a buffer: row i is buffer[starts[i] : starts[i] + lengths[i]]. See `to_windows`."""

    buffer_K: Tensor  #: values, each run of overlapping rows once
    starts_B: Tensor  #: where each row begins, int64
    lengths_B: Tensor  #: how many values each row has, int64

    def __len__(self) -> int:
        return len(self.lengths_B)

    @property
    def stored_over_read(self) -> float:
        """Values in the buffer over values in all rows; 1 where nothing overlaps, or nothing is there."""
        read = int(self.lengths_B.sum())
        return len(self.buffer_K) / read if read else 1.0

    def to_jagged(self) -> Jagged:
        """The rows themselves."""
        return Jagged(self.buffer_K[slice_positions(self.starts_B, self.lengths_B)], self.lengths_B)


def to_windows(rows: Jagged) -> WindowedRows:
    """The rows as windows: a row that equals the one before with a prefix dropped and a suffix added adds its suffix.

    The longest such overlap is found by hash and then compared, so `to_jagged()` always gives the rows back. O(values).

    Raises:
        ValueError: the rows have weights.
        DataError: lengths are negative or do not add up to the values.
    """
    if rows.weights_N is not None:
        raise ValueError("rows with weights cannot be windows: a value has a different weight in each row")
    rows.require_valid()
    overlap_B, begin_B, values_N = _overlaps(rows), rows.offsets[:-1], bits(rows.values_N)
    # No overlap where only the hashes were equal.
    here = slice_positions(begin_B, overlap_B)
    before = slice_positions(begin_B - overlap_B, overlap_B, len(here))
    wrong = here[values_N[here] != values_N[before]]
    overlap_B = overlap_B.index_fill(0, torch.searchsorted(rows.offsets, wrong, right=True) - 1, 0)
    added_B = rows.lengths_B - overlap_B
    added = slice_positions(rows.offsets[:-1] + overlap_B, added_B)
    return WindowedRows(rows.values_N[added], added_B.cumsum(0) - rows.lengths_B, rows.lengths_B)


def _overlaps(rows: Jagged) -> Tensor:
    """The most values at the end of each row's predecessor that its own first values equal, by hash: int64, B.

    A suffix of row i may begin at any of its values, and the prefix that it must equal begins where the row ends. There
    are at most N comparisons for all rows together.
    """
    mixed_N = mix64_(bits(rows.values_N).clone())
    running = torch.nn.functional.pad((mixed_N * _powers(_BASE, mixed_N)).cumsum(0), (1, 0))
    inverse = _powers(_INVERSE, mixed_N)

    def hash_span(a: Tensor, b: Tensor) -> Tensor:
        """Of the values from a to b, wherever they stand: (P[b] - P[a]) r^-a, P[t] = sum_{s < t} mix(v_s) r^s."""
        return (running.index_select(0, b) - running.index_select(0, a)) * inverse.index_select(0, a)

    length_B = rows.lengths_B
    row_N = torch.repeat_interleave(torch.arange(len(rows), device=length_B.device), length_B)
    size_N = rows.offsets.index_select(0, row_N + 1) - torch.arange(len(row_N), device=length_B.device)
    begin = (size_N <= torch.nn.functional.pad(length_B[1:], (0, 1)).index_select(0, row_N)).nonzero().squeeze(1)
    size, row = size_N[begin], row_N[begin]
    same = hash_span(begin, begin + size) == hash_span(begin + size, begin + 2 * size)
    return torch.zeros_like(length_B).scatter_reduce_(0, row[same] + 1, size[same], "amax")


def _powers(base: int, like_N: Tensor) -> Tensor:
    """1, base, base^2, ..., modulo 2^64."""
    factors_N = torch.full_like(like_N, base)
    factors_N[:1] = 1
    return factors_N.cumprod(0)
