"""Reads a source from any place on: ids become rows, samples are left out, and what became of each row is counted.

Shape letters: B samples.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.log_import.hashed_ids import IdMap
from nemo_vfm.recsys.sources.log_reading import BadRow, ImportSource, LogPosition, refuse_untrainable
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_fingerprint import mix64_
from nemo_vfm.sparse.tables.counter_hash import name_salt

#: A block in which so many rows are bad and none is good stops the import: the file is of another kind.
MAX_BAD = 100
OnBadRow = Literal["stop", "drop"]
KeepBy = Literal["session", "sample"]
RULE, NEGATIVES = "down-sampling", "down-sampling of negatives"
#: Bad rows that are listed; all are counted.
MAX_LISTED = 1000


@dataclass(slots=True)
class ImportCounts:
    """Rows that came in, and what became of those that are not in the table."""

    total: int = 0  #: rows read, bad ones included
    dropped: Counter[str] = field(default_factory=Counter)  #: by rule
    failed: Counter[str] = field(default_factory=Counter)  #: bad rows, by reason
    listed: list[BadRow] = field(default_factory=list)  #: the first of them

    @property
    def kept(self) -> int:
        """Rows that are neither dropped nor bad."""
        return self.total - self.dropped.total() - self.failed.total()

    def column(self) -> dict[str, Json]:
        """As ledger.json has it: in = kept + dropped + failed."""
        return {
            "in": self.total, "kept": self.kept, "dropped": dict(sorted(self.dropped.items())),
            "failed": dict(sorted(self.failed.items())),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class IntakeState:
    """How far a source is read."""

    position: LogPosition = field(default_factory=LogPosition)  #: where to go on
    counts: ImportCounts = field(default_factory=ImportCounts)  #: of all rows before
    share: float = 0.0  #: of the input's bytes before

    def json(self) -> Json:
        """For `state_of`."""
        counts, listed = self.counts, [asdict(row) for row in self.counts.listed]
        saved = {
            "total": counts.total, "dropped": dict(counts.dropped), "failed": dict(counts.failed), "listed": listed,
        }  # fmt: skip
        return {"position": asdict(self.position), "counts": saved, "share": self.share}


def state_of(content: Any) -> IntakeState:
    """What `IntakeState.json` gave; the beginning for None."""
    if content is None:
        return IntakeState()
    saved = content["counts"]
    listed = [BadRow(**row) for row in saved["listed"]]
    counts = ImportCounts(saved["total"], Counter(saved["dropped"]), Counter(saved["failed"]), listed)
    return IntakeState(LogPosition(**content["position"]), counts, content["share"])


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Keeps a sample if a hash of its session, or of its own number, is below the share."""

    fraction: float  #: of sessions or samples that stays, above 0 and at most 1
    by: KeepBy  #: what is drawn
    seed: int  #: of the draw
    #: of the samples without a label above 0 that stays of these, by their own numbers. What stays of them weighs so
    #: much more, so that all sums over the log keep their expected value.
    negatives: float = 1.0

    def sample_rows(self, chunk: LogChunk, dropped: Counter[str]) -> LogChunk:
        """The samples that stay; how many do not is added to `dropped`."""
        if self.fraction < 1:
            numbers_B = chunk.session_B if self.by == "session" else chunk.ids_B
            stays_B = self._draw(numbers_B, self.by, self.fraction)
            dropped[RULE] += len(chunk) - int(stays_B.sum())
            chunk = chunk.select(stays_B.nonzero().squeeze(1))
        if self.negatives == 1:
            return chunk
        positive_B = torch.stack([label_B > 0 for label_B in chunk.labels.values()]).any(0)
        weight_B = torch.ones(len(chunk)) if chunk.weight_B is None else chunk.weight_B
        chunk = replace(chunk, weight_B=weight_B.where(positive_B, weight_B / self.negatives))
        stays_B = positive_B | self._draw(chunk.ids_B, "negative", self.negatives)
        dropped[NEGATIVES] += len(chunk) - int(stays_B.sum())
        return chunk.select(stays_B.nonzero().squeeze(1))

    def _draw(self, numbers_B: Tensor, what: str, share: float) -> Tensor:
        mixed_B = mix64_(numbers_B + name_salt(self.seed, what)).numpy().view(np.uint64)
        return torch.from_numpy(mixed_B / 2.0**64 < share)


def intake(
    source: ImportSource, state: IntakeState, *, ids: IdMap | None, sampling: RowSampling | None,
    on_bad_row: OnBadRow, raw_features: Sequence[str] = (),
) -> Iterator[tuple[LogChunk, IntakeState]]:  # fmt: skip
    """Samples as they go into the table, but for their order, and how far the source is read after them.

    Args:
        ids: None leaves ids as they are.
        sampling: None keeps all.
        on_bad_row: what a row does that is no sample.
        raw_features: whose numbers are no ids and stay as they are.
    """
    for read in map(refuse_untrainable, source.read(state.position)):
        if read.bad and on_bad_row == "stop":
            raise DataError(f"{read.bad[0]}. Set on_bad_row: drop to leave out and count such rows.")
        if len(read.bad) >= MAX_BAD and not len(read.chunk):
            reason, count = Counter(row.reason for row in read.bad).most_common(1)[0]
            raise DataError(
                f"none of {len(read.bad):,} rows from line {read.bad[0].line} of {read.file} on is a sample; "
                f"{count:,} of them: {reason}. Is the file of another kind?"
            )
        old = state.counts
        counts = ImportCounts(
            old.total + len(read.chunk) + len(read.bad), Counter(old.dropped),
            old.failed + Counter(row.reason for row in read.bad), [*old.listed, *read.bad][:MAX_LISTED],
        )  # fmt: skip
        chunk = read.chunk if sampling is None else sampling.sample_rows(read.chunk, counts.dropped)
        state = IntakeState(read.end, counts, read.share)
        if ids is not None:
            own = {name: rows for name, rows in chunk.features.items() if name not in raw_features}
            mapped = {name: ids.table_rows(name, rows) for name, rows in own.items()}
            chunk = replace(chunk, features={**chunk.features, **mapped})
        yield chunk, state
