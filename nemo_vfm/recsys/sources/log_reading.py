"""Declares sources that can be read from any place on, with every bad row named by file and line.

Shape letters: B samples, L rows of a block that could be cut into columns.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.sparse.log_chunk import LogChunk

#: None: samples keep their order. Given: they are clustered by session, in order of time. Cut: they are clustered by
#: what the source reads as session, such as the user, and `ImportSource.complete` then cuts the sessions.
Sessions = Literal["none", "given", "cut"]


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place between two rows of a log of several files."""

    file: int = 0  #: the number of the file among the source's
    offset: int = 0  #: what of it lies before: bytes of a text file, unpacked; rows of a Parquet file
    line: int = 0  #: lines before it in this file
    row: int = 0  #: rows before it in all files, bad ones included. The next sample has this number.


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no sample."""

    file: str  #: its path
    line: int  #: from 1, the header included; of a Parquet file the row, from 1
    reason: str  #: one of a few texts, so that rows can be counted by it

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class ReadChunk:
    """Some rows of a log, one after another."""

    chunk: LogChunk  #: those that are samples
    file: str  #: that they are from
    lines_B: NDArray[np.int64]  #: the line of each, see `BadRow`
    bad: tuple[BadRow, ...]  #: those that are no samples, by line
    end: LogPosition  #: where to go on
    share: float  #: of the input's bytes up to there

    def without(self, reasons: Mapping[int, str]) -> Self:
        """The same rows; those samples, by their place, are bad ones for a reason each."""
        if not reasons:
            return self
        bad = [BadRow(self.file, int(self.lines_B[row]), reason) for row, reason in reasons.items()]
        good = np.delete(np.arange(len(self.chunk)), [*reasons])
        return replace(
            self, chunk=self.chunk.select(torch.from_numpy(good)), lines_B=self.lines_B[good],
            bad=tuple(sorted([*self.bad, *bad], key=lambda row: row.line)),
        )  # fmt: skip


@runtime_checkable
class ImportSource(Protocol):
    """A log of somebody's."""

    def files(self) -> Sequence[Path]:
        """In the order in which they are read."""
        ...

    def schema(self) -> TableSchema:
        """The columns of its samples, and which features belong together."""
        ...

    def sessions(self) -> Sessions:
        """Whether its samples have sessions; see `Sessions`."""
        ...

    def read(self, begin: LogPosition) -> Iterator[ReadChunk]:
        """All rows from `begin` on, in the order of the files; any `ReadChunk.end` is a place to begin."""
        ...

    def complete(self, chunk: LogChunk) -> LogChunk:
        """The samples as the table gets them, once all samples of a session are in the chunk, in order of time."""
        ...


def refuse_untrainable(read: ReadChunk) -> ReadChunk:
    """The same rows; those whose numbers no training could take are bad ones, whatever source they are from."""
    chunk = read.chunk
    wrong = [
        *((f"the label {name} is not in 0..1", (one < 0) | (one > 1)) for name, one in chunk.labels.items()),
        *((f"{name} is infinite, or beyond float32", one.isinf()) for name, one in chunk.dense.items()),
    ]
    if chunk.weight_B is not None:  # a weight of 0 is that of a bad sample
        wrong.append(("the weight is not above 0, or infinite", ~((chunk.weight_B > 0) & chunk.weight_B.isfinite())))
    reasons: dict[int, str] = {}
    for reason, wrong_B in wrong:
        for row in wrong_B.nonzero().squeeze(1).tolist():
            reasons.setdefault(row, reason)
    return read.without(reasons)


class LogFiles(ABC):
    """What sources of files have in common; see `ImportSource`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        if not paths:
            raise ValueError("paths is empty; name the files of the log, in order")
        self.paths = tuple(Path(path) for path in paths)

    def files(self) -> Sequence[Path]:
        """See `ImportSource`."""
        return self.paths

    @abstractmethod
    def read(self, begin: LogPosition) -> Iterator[ReadChunk]:
        """See `ImportSource`."""

    def complete(self, chunk: LogChunk) -> LogChunk:
        """As it is."""
        return chunk

    def log_chunks(self) -> Iterator[LogChunk]:
        """See `LogSource`; DataError where a row is bad."""
        for read in map(refuse_untrainable, self.read(LogPosition())):
            if read.bad:
                raise DataError(f"{read.bad[0]}. Set on_bad_row: drop of ImportLog to leave out and count such rows.")
            yield read.chunk


@dataclass(eq=False)
class LogRows:
    """Rows of one file, one after another."""

    file: str  #: its path
    lines_L: NDArray[np.int64]  #: the line of each row, from 1
    numbers_L: NDArray[np.int64]  #: the number of each row in the whole log, from 0
    bad: list[BadRow] = field(default_factory=list)  #: further rows between them, which could not be cut
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
        return ReadChunk(chunk, self.file, self.lines_L, tuple(self.bad), end, share).without(self._reasons)
