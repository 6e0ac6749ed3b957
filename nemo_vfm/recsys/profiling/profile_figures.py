"""Turns what was measured of a log into the figures of its profile.

Shape letters: B samples, R rows, W time windows, G groups of sessions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.profiling.batch_statistics import measured_factor, num_batches, reuse
from nemo_vfm.recsys.profiling.icdf_interval import icdf_interval
from nemo_vfm.recsys.profiling.jackknife import Jackknife, ratio
from nemo_vfm.recsys.profiling.locality_stats import EDGES
from nemo_vfm.recsys.profiling.log_measurements import LogMeasurements
from nemo_vfm.recsys.profiling.log_outline import windows_of
from nemo_vfm.recsys.profiling.session_sample import session_uniform
from nemo_vfm.recsys.profiling.session_sums import (
    CHANGES,
    COVERED,
    SAMPLES,
    SESSIONS,
    VALUES,
    predicted_factor,
    same_session,
    session_groups,
    sums_by_group,
    unchanged_share,
)
from nemo_vfm.recsys.profiling.table_counts import (
    Counts,
    add_counts,
    drift,
    expected_occupied,
)
from nemo_vfm.sparse.dedup_groups import choose_groups
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import row_changes

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True)
class ProfileFigures:
    """The figures, part by part.

    Args:
        measured: of the sampled sessions.
        edges: of the time windows.
        batch_size: samples of the batches in which reuse and dedupe factors are measured.
        min_factor: see `choose_groups`.
        hot_share: see `drift`.
        confidence: of the intervals.
        seed: see `session_uniform`.
        fraction: share of the log's sessions that were sampled.
    """

    measured: LogMeasurements
    edges: list[int]
    batch_size: int
    min_factor: float
    hot_share: float
    confidence: float
    seed: int
    fraction: float

    def json(self) -> dict[str, Json]:
        """All of them."""
        sums = self.measured.sums
        return {
            "samples": int(sums.sums_GK[:, SAMPLES].sum()),
            "sessions": self.measured.sessions.as_json(self.confidence),
            "session_runs": int(sums.sums_GK[:, SESSIONS].sum()),
            "samples_per_session": self._all.estimate(sums.sums_GK, ratio(SAMPLES, SESSIONS)),
            "kept": {"fraction": self.measured.kept.fraction, "samples": len(self._log),
                     "batches": num_batches(len(self._log), self.batch_size)},
            "features": {name: self._feature(name) for name in sums.features},
            "groups": {name: self._group(members) for name, members in self._groups.items()},
            "tables": {name: self._table(name) for name in self.measured.tables},
        }  # fmt: skip

    @cached_property
    def _all(self) -> Jackknife:
        """For what was summed over all sampled sessions."""
        return Jackknife(self.confidence, self.fraction)

    @cached_property
    def _kept(self) -> Jackknife:
        """For what was measured on the sessions that were kept."""
        return Jackknife(self.confidence, self.measured.kept.fraction)

    @cached_property
    def _log(self) -> LogChunk:
        return self.measured.kept.log()

    @cached_property
    def _group_B(self) -> Tensor:
        return session_groups(self._log.session_B, self.seed)

    @property
    def _kept_share(self) -> float:
        return self.measured.kept.fraction / self.fraction

    @cached_property
    def _groups(self) -> dict[str, tuple[str, ...]]:
        return choose_groups(self._log.features, self._log.session_B, min_factor=self.min_factor)

    def _feature(self, name: str) -> dict[str, Json]:
        sums, found = self.measured.sums, self._all.estimate
        samples_to_changes = (SAMPLES, SESSIONS, sums.place(name, CHANGES))
        lengths = self.measured.lengths[name]
        return {
            "coverage": found(sums.sums_GK, ratio(sums.place(name, COVERED), SAMPLES)),
            "length": {
                "mean": found(sums.sums_GK, ratio(sums.place(name, VALUES), SAMPLES)),
                "quantiles": {str(share): _quantile(lengths, share) for share in _QUANTILES},
                "max": len(lengths) - 1,
            },
            "distinct": self.measured.ids[name].as_json(self.confidence),
            "unchanged": found(sums.sums_GK, unchanged_share(*samples_to_changes)),
            "factor": found(sums.sums_GK, predicted_factor(*samples_to_changes)),
        }

    def _group(self, members: Sequence[str]) -> dict[str, Json]:
        features = [self._log.features[name] for name in members]
        begins_B = ~same_session(self._log.session_B, None)
        columns = [torch.ones_like(begins_B), begins_B, row_changes(features) & ~begins_B]
        sums_GK = sums_by_group(self._group_B, columns)
        return {
            "features": list(members),
            "unchanged": self._kept.estimate(sums_GK, unchanged_share(0, 1, 2)),
            "predicted": self._kept.estimate(sums_GK, predicted_factor(0, 1, 2)),
            "measured": measured_factor(features, self.batch_size, self._kept),
        }

    def _table(self, name: str) -> dict[str, Json]:
        table, ids, counts_R = self.measured.tables[name], self.measured.ids[name], self.measured.counts_R[name]
        feature = self._log.features[name]
        lookups = Jagged(table.of(feature.values_N, name), feature.lengths_B)
        accesses, occupied = int(counts_R.sum()), int((counts_R > 0).sum())
        return {
            "rows": table.rows, "hash": table.hash, "accesses": accesses,
            "before": {"distinct": ids.as_json(self.confidence), "ids_by_count": _bins(ids.counts_K)},
            "after": {
                "occupied": occupied, "expected_occupied": expected_occupied(ids.distinct, table.rows),
                "collided": max(0.0, ids.distinct - occupied), "rows_by_count": _bins(counts_R),
            },
            "accesses_per_occupied_row": accesses / occupied if occupied else None,
            "icdf": icdf_interval(counts_R, lookups, self._group_B, self._all, self._kept_share),
            "reuse": reuse(lookups, self.batch_size, self._kept),
            "drift": self._drift(lookups, table.rows),
        }  # fmt: skip

    def _drift(self, lookups: Jagged, rows: int) -> dict[str, Json]:
        """Between the windows, and between random shares of the same sessions: what there is without drift.

        Both are of the kept sessions alone, and a share has about as many samples as its window: fewer lookups lie
        further apart by chance.
        """
        window_B = windows_of(self._log.time_B, self.edges)
        ends_W = torch.bincount(window_B, minlength=len(self.edges) - 1).cumsum(0) / len(window_B)
        uniform_B = session_uniform(self._log.session_B, self.seed, "random windows")
        shares_B = torch.bucketize(uniform_B, ends_W[:-1].double(), right=True)
        by_time, at_random = (np.zeros((len(ends_W), rows), np.int64) for _ in range(2))
        for counts_WR, one_B in ((by_time, window_B), (at_random, shares_B)):
            add_counts(counts_WR, lookups.values_N, one_B.repeat_interleave(lookups.lengths_B))
        return {"accesses": by_time.sum(1).tolist(), **drift(by_time, self.hot_share),
                "at_random": drift(at_random, self.hot_share)}  # fmt: skip


def _bins(counts: Counts) -> list[int]:
    """How many of the counts are in each of the 17 bins; zeros are in none."""
    bins: list[int] = np.bincount(np.searchsorted(EDGES, counts[counts > 0]), minlength=17).tolist()
    return bins


def _quantile(lengths: Counts, share: float) -> int:
    """The least length that at least this share of the samples does not exceed."""
    return int(np.searchsorted(lengths.cumsum(), np.ceil(share * lengths.sum() * (1 - 1e-12))))
