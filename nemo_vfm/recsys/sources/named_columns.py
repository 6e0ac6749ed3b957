"""Makes samples of the columns of a log that a recipe names.

Shape letters: L rows of the batch.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.sources.arrow_values import ArrowRows
from nemo_vfm.recsys.sources.log_reading import LogFiles, Sessions
from nemo_vfm.recsys.sources.text_values import TextRows
from nemo_vfm.sparse.log_chunk import LogChunk


class ColumnLog(LogFiles):
    """Files whose columns a recipe names; `ParquetLog` and `TextLog` say what each argument is."""

    def __init__(
        self, paths: Sequence[Path], session: str | None, time: str | None, labels: Sequence[str],
        features: Sequence[str], dense: Sequence[str], weight: str | None, log1p: bool,
    ) -> None:  # fmt: skip
        super().__init__(paths)
        self.session, self.time, self.weight, self.log1p = session, time, weight, log1p
        self.labels, self.features, self.dense = tuple(labels), tuple(features), tuple(dense)
        single = [name for name in (session, time, weight) if name]
        self.names = list(dict.fromkeys([*single, *labels, *features, *dense]))  #: of all columns that are read
        self.schema()  # a wrong name is refused here

    def schema(self) -> TableSchema:
        """The named columns, no groups."""
        return TableSchema(self.dense, self.labels, self.features, weight=self.weight is not None)

    def sessions(self) -> Sessions:
        """Those of the column, if there is one."""
        return "none" if self.session is None else "given"

    def chunk(self, rows: "ArrowRows | TextRows") -> LogChunk:
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
