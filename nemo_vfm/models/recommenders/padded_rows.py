"""Lays jagged rows out as one padded tensor with an exact mask.

Shape letters: R rows, N values, T the longest kept row, D width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.sparse.jagged import Jagged, slice_positions


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Where the last values of each row go.

    Args:
        lengths_R: how many values of each row are kept.
        longest: T, at least 1.
        source_N: the kept values among all.
        target_N: their places in R x T.
    """

    lengths_R: Tensor
    longest: int
    source_N: Tensor
    target_N: Tensor

    @property
    def mask_RT(self) -> Tensor:
        """True where there is a value."""
        return torch.arange(self.longest, device=self.lengths_R.device) < self.lengths_R[:, None]

    @property
    def age_RT(self) -> Tensor:
        """How many values of its row come after each; 0 for the last one and for padding."""
        place_T = torch.arange(self.longest, device=self.lengths_R.device)
        return (self.lengths_R[:, None] - 1 - place_T).clamp_(min=0)

    def padded(self, values_N: Tensor) -> Tensor:
        """(R, T, ...), zeros where there is no value."""
        rows = len(self.lengths_R)
        flat = values_N.new_zeros(rows * self.longest, *values_N.shape[1:])
        kept = values_N.index_select(0, self.source_N)
        return flat.index_copy(0, self.target_N, kept).reshape(rows, self.longest, *values_N.shape[1:])


@dataclass(frozen=True, eq=False)
class _ExportedLayout(RowLayout):
    """The same in operators whose results have known sizes: all rows are as long as may be.

    Args:
        ends_R: behind the last value of each row, among all.
    """

    ends_R: Tensor

    def padded(self, values_N: Tensor) -> Tensor:
        """See `RowLayout.padded`. A row of zeros behind the values stands for padding."""
        place_RT = (self.ends_R - self.lengths_R)[:, None] + torch.arange(self.longest, device=self.ends_R.device)
        with_zero = torch.cat([values_N, values_N.new_zeros(1, *values_N.shape[1:])])
        return with_zero[place_RT.where(self.mask_RT, values_N.shape[0])]


def row_layout(rows: Jagged, most: int) -> RowLayout:
    """The last `most` values of each row, first the oldest of them, then padding.

    A device waits here for the longest length.
    """
    lengths_R = rows.lengths_B.clamp(max=most)
    if torch.compiler.is_exporting():
        return _ExportedLayout(lengths_R, most, lengths_R[:0], lengths_R[:0], rows.offsets[1:])
    longest = max(1, int(lengths_R.max())) if len(lengths_R) else 1
    source_N = slice_positions(rows.offsets[1:] - lengths_R, lengths_R)
    begins_R = torch.arange(len(lengths_R), device=lengths_R.device) * longest
    return RowLayout(lengths_R, longest, source_N, slice_positions(begins_R, lengths_R, len(source_N)))
