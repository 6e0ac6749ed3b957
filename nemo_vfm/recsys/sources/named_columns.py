"""Makes samples of the columns of a log that a recipe names.

Shape letters: L rows of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.sources.log_reading import LogFiles, LogRows, Sessions
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk


class ColumnRows(Protocol):
    """Some rows of a log. Columns are converted when asked for; rows that do not convert are refused."""

    @property
    def rows(self) -> LogRows:
        """Which rows these are."""
        ...

    def keys(self, name: str) -> Tensor:
        """Integers or hashes of texts: int64, (L,). A row without one is refused."""
        ...

    def times(self, name: str) -> Tensor:
        """Integers, dates or times: int64, (L,). A row without one is refused."""
        ...

    def numbers(self, name: str, *, required: bool) -> Tensor:
        """float32, (L,); NaN where there is none, which is refused where it is required."""
        ...

    def ids(self, name: str) -> Jagged:
        """Of each row its ids, or none."""
        ...


@dataclass(frozen=True, slots=True)
class NamedColumns:
    """Which columns are what."""

    session: str | None  #: None if the log has no sessions, each sample is then its own
    time: str | None  #: None where rows stand in order of time
    labels: Sequence[str]
    features: Sequence[str]
    dense: Sequence[str]
    weight: str | None  #: what each sample counts; None if all count alike
    log1p: bool  #: dense numbers x become ln(1 + max(x, 0))

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        single = [name for name in (self.session, self.time, self.weight) if name]
        return list(dict.fromkeys([*single, *self.labels, *self.features, *self.dense]))

    def chunk(self, rows: ColumnRows) -> LogChunk:
        """The samples, refused rows included."""
        ids = torch.from_numpy(rows.rows.numbers_L)
        dense = {name: rows.numbers(name, required=False) for name in self.dense}
        return LogChunk(
            ids,
            ids if self.session is None else rows.keys(self.session),
            ids if self.time is None else rows.times(self.time),
            {name: column.clamp(min=0).log1p() if self.log1p else column for name, column in dense.items()},
            {name: rows.numbers(name, required=True) for name in self.labels},
            {name: rows.ids(name) for name in self.features},
            None if self.weight is None else rows.numbers(self.weight, required=True),
        )


class ColumnLog(LogFiles):
    """Files whose columns a recipe names."""

    def __init__(self, paths: Sequence[Path], columns: NamedColumns) -> None:
        super().__init__(paths)
        self._columns = columns
        self.schema()  # a wrong name is refused here

    def schema(self) -> TableSchema:
        """The named columns, no groups."""
        named = self._columns
        return TableSchema(named.dense, named.labels, named.features, weight=named.weight is not None)

    def sessions(self) -> Sessions:
        """Those of the column, if there is one."""
        return "none" if self._columns.session is None else "given"
