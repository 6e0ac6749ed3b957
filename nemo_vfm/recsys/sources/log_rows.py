"""Notes which rows of a block cannot be samples, and why, while its columns are converted.

Shape letters: L rows of the block that could be cut into columns.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_vfm.recsys.sources.log_reading import BadRow, LogPosition, ReadChunk
from nemo_vfm.sparse.log_chunk import LogChunk


@dataclass(eq=False)
class LogRows:
    """Rows of one file, one after another.

    Args:
        file: its path.
        lines_L: the line of each row, from 1.
        numbers_L: the number of each row in the whole log, from 0.
        bad: further rows between them, which could not be cut.
    """

    file: str
    lines_L: NDArray[np.int64]
    numbers_L: NDArray[np.int64]
    bad: list[BadRow] = field(default_factory=list)
    _reasons: dict[int, str] = field(default_factory=dict)

    def refuse(self, rows: NDArray[Any], reason: str) -> None:
        """These rows, a mask or numbers of 0 to L - 1, are no samples; the first reason given for a row counts."""
        for row in (np.flatnonzero(rows) if rows.dtype == np.bool_ else rows).tolist():
            self._reasons.setdefault(row, reason)

    def read_chunk(self, chunk: LogChunk, end: LogPosition, share: float) -> ReadChunk:
        """What a source gives of this block; see `ReadChunk`.

        Args:
            chunk: a sample a row, L; those of refused rows are left out.
        """
        bad = [BadRow(self.file, int(self.lines_L[row]), reason) for row, reason in self._reasons.items()]
        lines_B = self.lines_L
        if bad:
            good = np.delete(np.arange(len(lines_B)), list(self._reasons))
            chunk, lines_B = chunk.select(torch.from_numpy(good)), lines_B[good]
        bad = sorted([*self.bad, *bad], key=lambda row: row.line)
        return ReadChunk(chunk, self.file, lines_B, tuple(bad), end, share)
