"""Reads the click logs of Criteo: 40 columns separated by tabs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.sources.delimited_rows import parse
from nemo_vfm.recsys.sources.log_reading import LogFiles, LogPosition, ReadChunk, Sessions
from nemo_vfm.recsys.sources.text_blocks import TextFiles
from nemo_vfm.sparse.log_chunk import LogChunk

LABEL = "click"
DENSE = tuple(f"I{number}" for number in range(1, 14))
FEATURES = tuple(f"C{number}" for number in range(1, 27))


class CriteoTsv(LogFiles):
    """Criteo's logs, Kaggle's of a week or the terabyte of 24 days: a label, 13 integers, 26 hexadecimal ids.

    Any cell but the label may be empty: a number is then NaN, a feature an empty row. There are no sessions and no
    times; each sample is a separate session, and its time is its number.

    Args:
        paths: the files, in order; those that end in .gz are unpacked.
        log1p: integers x become ln(1 + max(x, 0)), as DLRM trains on them.
    """

    def __init__(self, *, paths: Sequence[Path], log1p: bool = True) -> None:
        super().__init__(paths)
        self.log1p = log1p

    def schema(self) -> TableSchema:
        """Label click, dense I1 to I13, features C1 to C26, no groups."""
        return TableSchema(dense=DENSE, labels=(LABEL,), features=FEATURES)

    def sessions(self) -> Sessions:
        """None."""
        return "none"

    def read(self, begin: LogPosition) -> Iterator[ReadChunk]:
        for block in TextFiles(self.paths).blocks(begin):
            cells = parse(block, (LABEL, *DENSE, *FEATURES), "\t")
            label, present = cells.whole_numbers(LABEL)
            cells.rows.refuse(~(present & (label >> 1 == 0)), "the label is neither 0 nor 1")
            dense = {}
            for name in DENSE:
                numbers, is_there = cells.whole_numbers(name)
                found = numbers.astype(np.float32)
                found = np.log1p(np.maximum(found, 0)) if self.log1p else found
                found[~is_there] = np.nan
                dense[name] = torch.from_numpy(found)
            ids, labels = torch.from_numpy(cells.rows.numbers_L), {LABEL: torch.from_numpy(label.astype(np.float32))}
            chunk = LogChunk(ids, ids, ids, dense, labels, {name: cells.hexadecimal(name) for name in FEATURES})
            yield cells.rows.read_chunk(chunk, block.end, block.share)
