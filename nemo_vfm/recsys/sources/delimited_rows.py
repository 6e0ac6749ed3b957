"""Parses blocks of delimited text by column, and notes which rows cannot be samples and why.

Shape letters: L rows of the block that have the right number of columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_vfm.recsys.sources.log_reading import BadRow, LogRows
from nemo_vfm.recsys.sources.text_blocks import TextBlock
from nemo_vfm.sparse.jagged import Jagged

_WHOLE = r"^-?[0-9]{1,18}$"
_HEX_DIGITS = np.full(256, 255, np.uint8)  # value of a character; 255 where it is no digit
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _HEX_DIGITS[list(_digits)] = np.arange(16)


@dataclass(frozen=True, slots=True, eq=False)
class DelimitedRows:
    """A block, cut into cells. Columns are converted when asked for; rows that do not convert are refused."""

    rows: LogRows  #: those with the right number of columns
    table: Any  #: a `pyarrow.Table` with a string a cell, null where it is empty

    def whole_numbers(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Values of a column of integers, 0 where a cell is empty, and whether it has one: (L,) each."""
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = self.table.column(name).combine_chunks()
        try:
            numbers = cells.cast(pa.int64())
        except pa.ArrowInvalid:
            good = pc.match_substring_regex(cells, _WHOLE).fill_null(True).to_numpy(zero_copy_only=False)
            self.rows.refuse(~good, f"{name} is not a whole number")
            numbers = pc.if_else(pa.array(good), cells, None).cast(pa.int64())
        return numbers.fill_null(0).to_numpy(), numbers.is_valid().to_numpy(zero_copy_only=False)

    def hexadecimal(self, name: str) -> Jagged:
        """A column of ids of at most eight hexadecimal digits; an empty row where a cell is empty."""
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = self.table.column(name).combine_chunks()
        present = cells.is_valid().to_numpy(zero_copy_only=False)
        lengths = np.diff(np.frombuffer(cells.buffers()[1], np.int32, len(cells) + 1))
        if (lengths[present] != 8).any():
            self.rows.refuse(lengths > 8, f"{name} has more than 8 hexadecimal digits")
            cells = pc.ascii_lpad(pc.if_else(pa.array(lengths <= 8), cells, "0"), 8, "0")
        digits = _HEX_DIGITS[np.frombuffer(cells.buffers()[2], np.uint8, 8 * int(present.sum()))].view("<u8")
        bad = digits & np.uint64(0xF0F0F0F0F0F0F0F0)
        if bad.any():
            self.rows.refuse(np.flatnonzero(present)[bad > 0], f"{name} is not hexadecimal")
        # Numbers of eight hexadecimal digits, a byte each, the highest first: joined to pairs, fours, and all.
        for bits, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0xFFFFFFFF)):
            digits = (digits << np.uint64(bits) | digits >> np.uint64(2 * bits)) & np.uint64(mask)
        ids = torch.from_numpy(digits.view(np.int64))
        return Jagged(ids, torch.from_numpy(present.astype(np.int64)))


def parse(block: TextBlock, names: Sequence[str], delimiter: str) -> DelimitedRows:
    """Cut a block into cells."""
    import pyarrow as pa
    import pyarrow.csv as csv

    first, wrong = block.end.line - block.num_lines + 1, []

    def refuse(row: "csv.InvalidRow") -> str:
        wrong.append(BadRow(block.file, first + row.number - 1, f"it does not have {row.expected_columns} columns"))
        return "skip"

    table = csv.read_csv(
        pa.BufferReader(block.text),
        csv.ReadOptions(use_threads=False, block_size=len(block.text) + 1, column_names=list(names)),
        csv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False, invalid_row_handler=refuse),
        csv.ConvertOptions(
            check_utf8=False, column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True
        ),
    )
    kept = np.ones(block.num_lines, bool)
    kept[[row.line - first for row in wrong]] = False
    lines_L = np.flatnonzero(kept) + first
    return DelimitedRows(LogRows(block.file, lines_L, lines_L - block.end.line - 1 + block.end.row, wrong), table)
