"""Reads a source from any place on: ids become rows, samples are left out, and what became of each row is counted."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.log_import.hashed_ids import IdMap
from nemo_vfm.recsys.log_import.import_counts import ImportCounts, counts_of
from nemo_vfm.recsys.log_import.row_sampling import RowSampling
from nemo_vfm.recsys.sources.log_reading import ImportSource, LogPosition, ReadChunk, trainable
from nemo_vfm.sparse.log_chunk import LogChunk

#: A block in which so many rows are bad and none is good stops the import: the file is of another kind.
MOST_BAD = 100
OnBadRow = Literal["stop", "drop"]


@dataclass(frozen=True, slots=True)
class IntakeState:
    """How far a source is read.

    Args:
        position: where to go on.
        counts: of all rows before.
        share: of the input's bytes before.
    """

    position: LogPosition = field(default_factory=LogPosition)
    counts: ImportCounts = field(default_factory=ImportCounts)
    share: float = 0.0

    def json(self) -> Json:
        """For `state_of`."""
        return {"position": asdict(self.position), "counts": self.counts.json(), "share": self.share}


def state_of(content: Any) -> IntakeState:
    """What `IntakeState.json` gave; the beginning for None."""
    if content is None:
        return IntakeState()
    return IntakeState(LogPosition(**content["position"]), counts_of(content["counts"]), content["share"])


@dataclass(frozen=True, slots=True)
class LogIntake:
    """Reads samples as they go into the table, but for their order.

    Args:
        source: the log.
        ids: None leaves ids as they are.
        sampling: None keeps all.
        on_bad_row: what a row does that is no sample.
        raw_features: whose numbers are no ids and stay as they are.
    """

    source: ImportSource
    ids: IdMap | None
    sampling: RowSampling | None
    on_bad_row: OnBadRow
    raw_features: Sequence[str] = ()

    def chunks(self, state: IntakeState) -> Iterator[tuple[LogChunk, IntakeState]]:
        """Samples, and how far the source is read after them.

        Raises:
            DataError: a row is bad and stops, or all of a block are, or a file is damaged.
        """
        for read in map(trainable, self.source.read(state.position)):
            self._judge(read)
            counts = counts_of(state.counts.json())
            counts.total += read.num_rows
            counts.fail(read.bad)
            chunk = read.chunk if self.sampling is None else self.sampling.kept(read.chunk, counts.dropped)
            state = IntakeState(read.end, counts, read.share)
            yield self._with_rows(chunk), state

    def _judge(self, read: ReadChunk) -> None:
        if read.bad and self.on_bad_row == "stop":
            raise DataError(f"{read.bad[0]}. Set on_bad_row: drop to leave out and count such rows.")
        if len(read.bad) >= MOST_BAD and not len(read.chunk):
            reason, count = Counter(row.reason for row in read.bad).most_common(1)[0]
            raise DataError(
                f"none of {len(read.bad):,} rows from line {read.bad[0].line} of {read.file} on is a sample; "
                f"{count:,} of them: {reason}. Is the file of another kind?"
            )

    def _with_rows(self, chunk: LogChunk) -> LogChunk:
        if self.ids is None:
            return chunk
        mapped = {
            name: self.ids.table_rows(name, ids)
            for name, ids in chunk.features.items()
            if name not in self.raw_features
        }
        return replace(chunk, features={**chunk.features, **mapped})
