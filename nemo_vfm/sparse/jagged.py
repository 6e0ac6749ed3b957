"""Holds rows of different lengths as one tensor of values and one of lengths, and selects rows without padding them.

Shape letters: B rows, M selected rows, N values, K selected values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError


def row_offsets(lengths_B: Tensor) -> Tensor:
    """Where each row begins, and after them where the last one ends: int64, B + 1 numbers."""
    return torch.nn.functional.pad(lengths_B.cumsum(0, dtype=torch.int64), (1, 0))


def run_begins(numbers_B: Tensor) -> Tensor:
    """Whether each number, such as a session's, differs from the one before: bool, B; True in the first place."""
    begins_B = torch.ones_like(numbers_B, dtype=torch.bool)
    begins_B[1:] = numbers_B[1:] != numbers_B[:-1]
    return begins_B


@dataclass(frozen=True, eq=False)
class Jagged:
    """Rows of different lengths, one after another. Nothing is checked here, see `require_valid`."""

    values_N: Tensor  #: ids in int64, or floating-point values of any further dimensions
    lengths_B: Tensor  #: how many values each row has, int64
    weights_N: Tensor | None = None  #: one weight a value, or None where all count alike

    def __len__(self) -> int:
        return len(self.lengths_B)

    @cached_property
    def offsets(self) -> Tensor:
        """Where each row begins, and at last N: int64, B + 1 numbers."""
        return row_offsets(self.lengths_B)

    @staticmethod
    def from_offsets(values_N: Tensor, offsets: Tensor, lengths_B: Tensor, weights_N: Tensor | None = None) -> "Jagged":
        """Rows whose `offsets` are known, which is cheaper than to sum the lengths again."""
        found = Jagged(values_N, lengths_B, weights_N)
        found.__dict__["offsets"] = offsets
        return found

    def rows(self, begin: int, end: int) -> "Jagged":
        """The rows begin..end, as views."""
        if begin == 0 and end == len(self):
            return self
        offsets = self.offsets[begin : end + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        weights = None if self.weights_N is None else self.weights_N[first:last]
        return Jagged.from_offsets(
            self.values_N[first:last], offsets - first if first else offsets, self.lengths_B[begin:end], weights
        )

    def select(self, rows_M: Tensor) -> "Jagged":
        """These rows, in this order; a row may come many times. Gradients reach float values and the weights."""
        if self.weights_N is None and len(self.values_N) == len(self) and bool((self.lengths_B == 1).all()):
            # One value a row, which is common: a third of the time.
            return Jagged(self.values_N.index_select(0, rows_M), torch.ones_like(rows_M, dtype=self.lengths_B.dtype))
        values, lengths = jagged_index_select(self.values_N, self.lengths_B, rows_M)
        if self.weights_N is None:
            return Jagged(values, lengths)
        weights, _ = jagged_index_select(self.weights_N, self.lengths_B, rows_M, len(values))
        return Jagged(values, lengths, weights)

    def to(self, device: torch.device | str) -> "Jagged":
        """The same rows on `device`."""
        weights = None if self.weights_N is None else self.weights_N.to(device, non_blocking=True)
        values, lengths = (one.to(device, non_blocking=True) for one in (self.values_N, self.lengths_B))
        return Jagged(values, lengths, weights)

    @staticmethod
    def cat(parts: "Sequence[Jagged]") -> "Jagged":
        """All rows of the parts, one part after another.

        Raises:
            ValueError: there is no part, or some have weights and some have none.
        """
        weights = [part.weights_N for part in parts if part.weights_N is not None]
        if not parts or len(weights) not in (0, len(parts)):
            raise ValueError(f"{len(weights)} of {len(parts)} jagged tensors have weights; all or none of them must")
        values, lengths = torch.cat([part.values_N for part in parts]), torch.cat([part.lengths_B for part in parts])
        return Jagged(values, lengths, torch.cat(weights) if weights else None)

    def require_valid(self, num_rows: int | None = None, feature: str = "a feature") -> None:
        """Check lengths and ids before they are used as positions.

        Args:
            num_rows: rows of the table that the values are ids of; None checks no ids.
            feature: its name, for the message.

        Raises:
            DataError: a length is negative, the lengths do not add up to the values or weights, or an id is no row.
        """
        if len(bad := (self.lengths_B < 0).nonzero()):
            row = int(bad[0])
            raise DataError(f"{feature}: row {row} has length {int(self.lengths_B[row])}; lengths must be at least 0.")
        for what, tensor in (("values", self.values_N), ("weights", self.weights_N)):
            if tensor is not None and len(tensor) != int(self.offsets[-1]):
                raise DataError(
                    f"{feature}: the lengths of {len(self)} rows add up to {int(self.offsets[-1])}, but there are "
                    f"{len(tensor)} {what}. Was the file or the batch truncated?"
                )
        if num_rows is None:
            return
        ids = self.values_N
        if len(bad := ((ids < 0) | (ids >= num_rows)).nonzero()):
            place = bad[0]
            row = int(torch.searchsorted(self.offsets, place, right=True)) - 1
            raise DataError(
                f"{feature}: row {row} has the id {int(ids[place])}, but its table has the rows 0 to {num_rows - 1}. "
                "Hash the ids into the table, or make the table larger."
            )


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
