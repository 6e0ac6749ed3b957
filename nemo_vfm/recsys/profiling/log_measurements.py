"""Measures the sampled sessions of a log chunk by chunk, in memory that does not grow with the log.

Shape letters: B samples, G groups of sessions, K sums or kept ids, N ids, R rows, W time windows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.recsys.profiling.jackknife import Floats, student_t
from nemo_vfm.recsys.profiling.session_sample import SessionReservoir, session_uniform
from nemo_vfm.recsys.profiling.table_rows import TableRows
from nemo_vfm.sparse.jagged import Jagged, run_begins
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import row_changes
from nemo_vfm.sparse.row_fingerprint import mix64_

Counts = NDArray[np.int64]
_SALT = 0x5851F42D4C957F2D  # unlike those that choose sessions
NUM_GROUPS = 32
#: The sums over all features, and those of one, which follow them.
SAMPLES, SESSIONS = 0, 1
COVERED, VALUES, CHANGES = 0, 1, 2


class LogMeasurements:
    """What is summed and counted in one pass.

    Args:
        tables: of some features, the rows that their ids look up.
        fraction: of the sessions of the log, that are given to it.
        max_ids: distinct ids a feature that are counted exactly.
        max_values: ids and samples of the sessions that are kept.
    """

    def __init__(
        self, features: Sequence[str], tables: Mapping[str, TableRows], *, fraction: float, max_ids: int,
        max_values: int, seed: int,
    ) -> None:  # fmt: skip
        if unknown := sorted(tables.keys() - set(features)):
            raise UserError(f"tables: the log has no feature {unknown[0]}; it has {', '.join(features)}")
        self.tables = tables
        self.sums = SessionSums(features, seed)
        self.sessions = ValueSketch(max_ids)
        self.ids = {name: ValueSketch(max_ids) for name in features}
        self.lengths: dict[str, Counts] = {name: np.zeros(0, np.int64) for name in features}
        self.counts_R = {name: np.zeros(table.rows, np.int64) for name, table in tables.items()}
        self.kept = SessionReservoir(fraction, max_values, seed)

    def add(self, chunk: LogChunk) -> None:
        """Measure these samples, which come after those before."""
        self.sums.add(chunk)
        self.sessions.add(torch.unique_consecutive(chunk.session_B))
        self.kept.add(chunk)
        for name, feature in chunk.features.items():
            self.ids[name].add(feature.values_N)
            # The sum of two arrays, the shorter one filled with zeros.
            one = self.lengths[name]
            other = np.bincount(feature.lengths_B.numpy())
            total = np.zeros(max(len(one), len(other)), np.int64)
            total[: len(one)] += one
            total[: len(other)] += other
            self.lengths[name] = total
            if name in self.tables:
                np.add.at(self.counts_R[name], self.tables[name].of(feature.values_N, name).numpy(), 1)


@dataclass(eq=False)
class ValueSketch:
    """Keeps the `limit` ids with the smallest 64-bit hashes, and how often each came.

    The hash is a bijection, so up to `limit` distinct ids the count is exact. Beyond, with u the largest kept hash as
    a share of all hashes, (K - 1) / u is an unbiased estimate of the distinct ids with a relative error of
    1 / sqrt(K - 2) (KMV: Bar-Yossef et al., RANDOM 2002; Beyer et al., SIGMOD 2007). The kept ids are a random sample
    of the distinct ones, and their counts are exact, since an id below the last threshold was below all before.
    """

    limit: int  #: ids at most; 16 bytes each
    exact: bool = True
    counts_K: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _hashes_K: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, values_N: Tensor) -> None:
        """Count these ids."""
        hashes = mix64_(values_N + _SALT).numpy()
        if not self.exact:
            hashes = hashes[hashes <= self._hashes_K[-1]]
        hashes, counts = np.unique(hashes, return_counts=True)
        merged, place = np.unique(np.concatenate([self._hashes_K, hashes]), return_inverse=True)
        total = np.zeros(len(merged), np.int64)
        np.add.at(total, place, np.concatenate([self.counts_K, counts]))
        self.exact &= len(merged) <= self.limit
        self._hashes_K, self.counts_K = merged[: self.limit], total[: self.limit]

    @property
    def distinct(self) -> float:
        """How many distinct ids came."""
        if self.exact:
            return float(len(self._hashes_K))
        share = (float(self._hashes_K[-1]) + 2.0**63) * 2.0**-64
        return (self.limit - 1) / share

    def as_json(self, confidence: float) -> dict[str, float | bool]:
        """`value`, `low`, `high`, of the ids that came, and whether they are exact."""
        error = 0.0 if self.exact else self.distinct * student_t(confidence, self.limit) / (self.limit - 2) ** 0.5
        value = self.distinct
        return {"value": value, "low": value - error, "high": value + error, "exact": self.exact}


class SessionSums:
    """Sums over the samples of a log, apart for `NUM_GROUPS` groups of its sessions."""

    def __init__(self, features: Sequence[str], seed: int) -> None:
        self.features, self.seed = tuple(features), seed
        self.sums_GK: Floats = np.zeros((NUM_GROUPS, 2 + 3 * len(self.features)))
        self._last: LogChunk | None = None

    def add(self, chunk: LogChunk) -> None:
        """Sum these samples, which come after those before."""
        begins_B = run_begins(chunk.session_B)
        if self._last is not None:
            begins_B[:1] = chunk.session_B[:1] != self._last.session_B
        columns = [torch.ones_like(begins_B), begins_B]
        for name in self.features:
            feature = chunk.features[name]
            # `row_changes`, the first row compared with the one before it.
            before = self._last.features[name] if self._last else None
            changed_B = row_changes([feature])
            if before is not None:
                changed_B[:1] = row_changes([Jagged.cat([before, feature.rows(0, 1)])])[1:]
            columns += [feature.lengths_B > 0, feature.lengths_B, changed_B & ~begins_B]
        self.sums_GK += sums_by_group(session_groups(chunk.session_B, self.seed), columns)
        self._last = chunk.rows(len(chunk) - 1, len(chunk))

    def place(self, feature: str, which: int) -> int:
        """Where the sum `COVERED`, `VALUES` or `CHANGES` of a feature stands."""
        return 2 + 3 * self.features.index(feature) + which


def session_groups(session_B: Tensor, seed: int) -> Tensor:
    """The group of each sample's session, 0 to `NUM_GROUPS` - 1: int64, B."""
    return (session_uniform(session_B, seed, "jackknife groups") * NUM_GROUPS).long()


def sums_by_group(group_B: Tensor, columns: Sequence[Tensor]) -> Floats:
    """The sums of each column over the samples of each group: (G, K)."""
    group = group_B.numpy()
    return np.stack([np.bincount(group, one.double().numpy(), NUM_GROUPS) for one in columns], axis=1)
