"""Reads logs from Parquet files with any names of columns, a batch of a row group at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.recsys.sources.arrow_values import ArrowRows
from nemo_vfm.recsys.sources.log_reading import LogPosition, LogRows, ReadChunk
from nemo_vfm.recsys.sources.named_columns import ColumnLog
from nemo_vfm.recsys.sources.text_blocks import sizes_of

if TYPE_CHECKING:
    import pyarrow as pa

_BUFFER_BYTES = 1 << 20
_BATCH_ROWS = 1 << 15


class ParquetLog(ColumnLog):
    """Anybody's log in Parquet, a row a sample.

    Ids are integers or strings, alone or in lists; of a string its 64-bit hash is the id. A null is an empty row of a
    feature or NaN of a number; a row without session, time or label is no sample, nor is one with a null in a list.

    Args:
        paths: the files, in order.
        session: column of integers or strings; None if the log has no sessions, each sample is then its own.
        time: column of integers, dates or timestamps, in whose unit they stay; None where rows stand in order of time.
        labels: columns of numbers or booleans.
        features: columns of ids.
        dense: columns of numbers.
        weight: column of numbers above 0, what each sample counts; None if all count alike.
        log1p: dense numbers x become ln(1 + max(x, 0)).
    """

    def __init__(
        self,
        *,
        paths: Sequence[Path],
        session: str | None,
        time: str | None,
        labels: Sequence[str],
        features: Sequence[str],
        dense: Sequence[str] = (),
        weight: str | None = None,
        log1p: bool = False,
    ) -> None:
        super().__init__(paths, session, time, labels, features, dense, weight, log1p)

    def read(self, begin: LogPosition) -> Iterator[ReadChunk]:
        sizes = sizes_of(self.paths)
        for number in range(begin.file, len(self.paths)):
            at = begin if number == begin.file else LogPosition(number, row=begin.row)
            path = self.paths[number]
            for batch, part in _record_batches(path, self.names, at.offset):
                places, count = np.arange(len(batch)), len(batch)
                rows = LogRows(str(path), places + at.line + 1, places + at.row)
                begin = at = LogPosition(at.file, at.offset + count, at.line + count, at.row + count)
                share = (sum(sizes[:number]) + part * sizes[number]) / max(1, sum(sizes))
                yield rows.read_chunk(self.chunk(ArrowRows(rows, batch)), at, share)


def _record_batches(path: Path, names: list[str], skipped: int) -> Iterator[tuple["pa.RecordBatch", float]]:
    """The rows of a file after the first `skipped`, and with each batch the share of rows up to its end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    try:
        # Without buffers of its own, the reader holds the whole of each column of a row group.
        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            if missing := [name for name in names if name not in file.schema_arrow.names]:
                raise UserError(f"{path} has no column {missing[0]}; it has {', '.join(file.schema_arrow.names)}")
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if done + rows <= skipped:
                    done += rows
                    continue
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names, use_threads=False):
                    unread = batch.slice(max(0, skipped - done))
                    done += len(batch)
                    if len(unread):
                        yield unread, done / file.metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read beyond row {done}: {error}. Was it copied completely?") from error
