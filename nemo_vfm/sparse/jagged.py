"""Holds rows of different lengths as one tensor of values and one of lengths.

Shape letters: B rows, N values, M selected rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.jagged_select import jagged_index_select, row_offsets


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
        if num_rows is not None:
            self._require_ids(num_rows, feature)

    def _require_ids(self, num_rows: int, feature: str) -> None:
        ids = self.values_N
        if len(bad := ((ids < 0) | (ids >= num_rows)).nonzero()):
            place = bad[0]
            row = int(torch.searchsorted(self.offsets, place, right=True)) - 1
            raise DataError(
                f"{feature}: row {row} has the id {int(ids[place])}, but its table has the rows 0 to {num_rows - 1}. "
                "Hash the ids into the table, or make the table larger."
            )
