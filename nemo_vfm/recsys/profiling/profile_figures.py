"""Turns what was measured of a log into the figures of its profile.

Shape letters: B samples, P batches, R rows, N ids, W time windows, G groups of sessions.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.profiling.jackknife import Floats, Jackknife, Statistic, as_json, ratio
from nemo_vfm.recsys.profiling.locality_stats import EDGES, ReuseHistogram
from nemo_vfm.recsys.profiling.log_measurements import (
    CHANGES,
    COVERED,
    NUM_GROUPS,
    SAMPLES,
    SESSIONS,
    VALUES,
    Counts,
    LogMeasurements,
    session_groups,
    sums_by_group,
)
from nemo_vfm.recsys.profiling.session_sample import session_uniform
from nemo_vfm.sparse.dedup_groups import choose_groups
from nemo_vfm.sparse.jagged import Jagged, run_begins
from nemo_vfm.sparse.row_deduplication import row_changes

#: The shares of accesses at which the ICDF is given: 0, 0.01 ... 1.
SHARES = np.arange(101) / 100
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


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

    def __init__(
        self, measured: LogMeasurements, *, edges: list[int], batch_size: int, min_factor: float, hot_share: float,
        confidence: float, seed: int, fraction: float,
    ) -> None:  # fmt: skip
        self.measured, self.edges, self.batch_size, self.min_factor = measured, edges, batch_size, min_factor
        self.hot_share, self.confidence, self.seed, self.fraction = hot_share, confidence, seed, fraction
        self._all = Jackknife(confidence, fraction)  # for what was summed over all sampled sessions
        self._kept = Jackknife(confidence, measured.kept.fraction)  # for what was measured on those that were kept
        self._log = measured.kept.log()
        self._group_B = session_groups(self._log.session_B, seed)

    def json(self) -> dict[str, Json]:
        """All of them."""
        sums = self.measured.sums
        groups = choose_groups(self._log.features, self._log.session_B, min_factor=self.min_factor)
        return {
            "samples": int(sums.sums_GK[:, SAMPLES].sum()),
            "sessions": self.measured.sessions.as_json(self.confidence),
            "session_runs": int(sums.sums_GK[:, SESSIONS].sum()),
            "samples_per_session": self._all.estimate(sums.sums_GK, ratio(SAMPLES, SESSIONS)),
            "kept": {"fraction": self.measured.kept.fraction, "samples": len(self._log),
                     "batches": num_batches(len(self._log), self.batch_size)},
            "features": {name: self._feature(name) for name in sums.features},
            "groups": {name: self._group(members) for name, members in groups.items()},
            "tables": {name: self._table(name) for name in self.measured.tables},
        }  # fmt: skip

    def _feature(self, name: str) -> dict[str, Json]:
        sums, found = self.measured.sums, self._all.estimate
        samples_to_changes = (SAMPLES, SESSIONS, sums.place(name, CHANGES))
        lengths = self.measured.lengths[name]
        return {
            "coverage": found(sums.sums_GK, ratio(sums.place(name, COVERED), SAMPLES)),
            "length": {
                "mean": found(sums.sums_GK, ratio(sums.place(name, VALUES), SAMPLES)),
                "quantiles": {  # the least length that at least this share of the samples does not exceed
                    str(share): int(np.searchsorted(lengths.cumsum(), np.ceil(share * lengths.sum() * (1 - 1e-12))))
                    for share in _QUANTILES
                },
                "max": len(lengths) - 1,
            },
            "distinct": self.measured.ids[name].as_json(self.confidence),
            "unchanged": found(sums.sums_GK, unchanged_share(*samples_to_changes)),
            "factor": found(sums.sums_GK, predicted_factor(*samples_to_changes)),
        }

    def _group(self, members: Sequence[str]) -> dict[str, Json]:
        features = [self._log.features[name] for name in members]
        begins_B = run_begins(self._log.session_B)
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
        kept_share = self.measured.kept.fraction / self.fraction
        # Drift between the windows, and between random shares of the same sessions: what there is without drift. Both
        # are of the kept sessions alone, and a share has about as many samples as its window: fewer lookups lie further
        # apart by chance.
        window_B = torch.bucketize(self._log.time_B, torch.tensor(self.edges[1:-1], dtype=torch.int64), right=True)
        ends_W = torch.bincount(window_B, minlength=len(self.edges) - 1).cumsum(0) / len(window_B)
        uniform_B = session_uniform(self._log.session_B, self.seed, "random windows")
        shares_B = torch.bucketize(uniform_B, ends_W[:-1].double(), right=True)
        by_time, at_random = (
            _counts_by(one_B.repeat_interleave(lookups.lengths_B), len(ends_W), lookups.values_N, table.rows)
            for one_B in (window_B, shares_B)
        )
        return {
            "rows": table.rows, "hash": table.hash, "accesses": accesses,
            "before": {"distinct": ids.as_json(self.confidence), "ids_by_count": _bins(ids.counts_K)},
            "after": {
                "occupied": occupied, "expected_occupied": float(-table.rows * np.expm1(-ids.distinct / table.rows)),
                "collided": max(0.0, ids.distinct - occupied), "rows_by_count": _bins(counts_R),
            },
            "accesses_per_occupied_row": accesses / occupied if occupied else None,
            "icdf": icdf_interval(counts_R, lookups, self._group_B, self._all, kept_share),
            "reuse": reuse(lookups, self.batch_size, self._kept),
            "drift": {"accesses": by_time.sum(1).tolist(), **drift(by_time, self.hot_share),
                      "at_random": drift(at_random, self.hot_share)},
        }  # fmt: skip


def unchanged_share(samples: int, sessions: int, changes: int) -> Statistic:
    """d: of the samples that are not the first of their session, the share that does not change."""
    return lambda sums: np.asarray(1 - sums[..., changes] / (sums[..., samples] - sums[..., sessions]))


def predicted_factor(samples: int, sessions: int, changes: int) -> Statistic:
    """RecD's dedupe factor, S / (1 + (S - 1)(1 - d))."""

    def factor(sums: Floats) -> Floats:
        # Where no session has a second sample, nothing is unchanged.
        unchanged = np.nan_to_num(unchanged_share(samples, sessions, changes)(sums))
        per_session = sums[..., samples] / sums[..., sessions]
        return np.asarray(per_session / (1 + (per_session - 1) * (1 - unchanged)))

    return factor


def icdf(counts_R: Counts) -> Counts:
    """The least number of rows that hold a share x of the lookups, for each x of `SHARES` (RecShard's ICDF): 101."""
    running = np.sort(counts_R)[::-1].cumsum()
    return rows_of_share(running, SHARES)


def rows_of_share(running_R: Counts | Floats, shares: Floats) -> Counts:
    """The least rows whose lookups reach each share.

    Args:
        running_R: running sums of the counts, in the order in which rows are taken.
    """
    # A share such as 0.29 is not exact in binary: without the slack, 29 of 100 lookups would fall short of it.
    wanted = shares * running_R[-1] * (1 - 1e-12)
    return np.where(wanted > 0, np.searchsorted(running_R, wanted) + 1, 0)


def drift(counts_WR: Counts, hot_share: float) -> dict[str, Json]:
    """How the lookups change from each window to the next.

    `distance` is the total variation distance of the shares, half the sum of |p - q| over the rows: 0 for equal
    windows, 1 for disjoint ones. `hot_set_stays` is the share of a window's hot set (the least rows that hold
    `hot_share` of its lookups) that is in the next one's. None where a window has no lookups.
    """
    distances, stays = list[Json](), list[Json]()
    for one_R, other_R in pairwise(counts_WR):
        with np.errstate(invalid="ignore"):
            apart = np.abs(one_R / one_R.sum() - other_R / other_R.sum()).sum() / 2
        distances.append(as_json(np.asarray(apart)))
        both = bool(one_R.any() and other_R.any())
        one, other = _hot_set(one_R, hot_share), _hot_set(other_R, hot_share)
        stays.append(float(np.isin(one, other).mean()) if both else None)
    return {"distance": distances, "hot_set_stays": stays}


def _hot_set(counts_R: Counts, hot_share: float) -> Counts:
    order_R = np.argsort(-counts_R, kind="stable")
    return order_R[: rows_of_share(counts_R[order_R].cumsum(), np.array([hot_share]))[0]]


def _counts_by(part_N: Tensor, parts: int, row_N: Tensor, rows: int) -> Counts:
    """Lookups of each row in each part: (parts, R)."""
    return np.bincount((part_N * rows + row_N).numpy(), minlength=parts * rows).reshape(parts, rows)


def _bins(counts: Counts) -> list[int]:
    """How many of the counts are in each of the 17 bins; zeros are in none."""
    bins: list[int] = np.bincount(np.searchsorted(EDGES, counts[counts > 0]), minlength=17).tolist()
    return bins


def reuse(lookups: Jagged, batch_size: int, jackknife: Jackknife) -> dict[str, Json]:
    """The 17-bin histograms of lookups a row in a batch, over all batches, and their mean; see `ReuseHistogram`.

    Intervals are of the jackknife over batches.
    """
    # Of each batch the rows in each of the 17 bins, then their lookups.
    found = []
    for begin, end in _batches(len(lookups), batch_size):
        first, last = lookups.offsets[[begin, end]].tolist()
        counts = torch.unique(lookups.values_N[first:last], return_counts=True)[1].numpy()
        shares = ReuseHistogram.of_counts(counts) if len(counts) else None
        bins = np.concatenate([shares.rows * len(counts), shares.accesses * counts.sum()]) if shares else np.zeros(34)
        found.append(bins)
    counts_P34 = np.stack(found)
    mean = jackknife.estimate(counts_P34, lambda sums: np.asarray(sums[..., 17:].sum(-1) / sums[..., :17].sum(-1)))
    return {
        "rows": jackknife.estimate(counts_P34, lambda sums: sums[..., :17] / sums[..., :17].sum(-1, keepdims=True)),
        "accesses": jackknife.estimate(counts_P34, lambda sums: sums[..., 17:] / sums[..., 17:].sum(-1, keepdims=True)),
        "mean": mean,
    }


def measured_factor(features: Sequence[Jagged], batch_size: int, jackknife: Jackknife) -> dict[str, Json]:
    """Samples a stored row in batches; the interval is of the jackknife over batches."""
    changed_B = row_changes(features)
    spans = _batches(len(changed_B), batch_size)
    sums = [(end - begin, 1 + int(changed_B[begin + 1 : end].sum())) for begin, end in spans]
    return jackknife.estimate(np.array(sums, np.float64), ratio(0, 1))


def num_batches(num_samples: int, batch_size: int) -> int:
    """How many are measured: whole ones, or one that is not where the log has no more."""
    return max(1, num_samples // batch_size)


def _batches(num_samples: int, batch_size: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, num_batches(num_samples, batch_size) * batch_size, batch_size):
        yield begin, min(begin + batch_size, num_samples)


def icdf_interval(
    counts_R: Counts, lookups: Jagged, group_B: Tensor, jackknife: Jackknife, kept_share: float
) -> dict[str, Json]:
    """The ICDF of the sample, `value`, and rows between which that of the whole log is, `low` and `high`: 101 each.

    The hottest rows of a sample hold more of its own lookups than of the others, since they were chosen by them. So the
    sample bounds the rows from below. From above they are bounded by cross-validation: rows are ordered by one half of
    the sessions, and their lookups counted in the other. The log consists of the sample, a fraction f, and of the rest:
    of the whole, these rows hold f times the share in the sample and 1 - f times that in the other half. Both bounds
    are moved outwards by the jackknife's half width of the share.

    Args:
        counts_R: lookups of the sample.
        lookups: rows that the kept sessions look up.
        group_B: the group of the session of each of their samples.
        jackknife: of the sample.
        kept_share: share of the sample's sessions that are kept.
    """
    rows = icdf(counts_R)
    if not counts_R.any() or not len(lookups.values_N):
        return {"value": rows.tolist(), "low": rows.tolist(), "high": rows.tolist()}
    group_N = group_B.repeat_interleave(lookups.lengths_B)
    # Lookups of each group by the first point of the ICDF whose rows hold them: (G, 101).
    rank_R = np.empty(len(counts_R), np.int64)
    rank_R[np.argsort(-counts_R, kind="stable")] = np.arange(1, len(counts_R) + 1)
    cell_N = group_N.numpy() * len(rows) + np.searchsorted(rows, rank_R[lookups.values_N.numpy()])
    sums_GP = np.bincount(cell_N, minlength=NUM_GROUPS * len(rows)).reshape(NUM_GROUPS, -1).astype(np.float64)
    shares = jackknife.half_width(sums_GP, lambda sums: np.asarray(sums.cumsum(-1) / sums.sum(-1, keepdims=True)))
    half = shares * kept_share**0.5
    half = np.nan_to_num(half, nan=1.0)
    inside_R = np.sort(counts_R)[::-1].cumsum() / counts_R.sum()
    # The share of one half's lookups that the first rows by the other half's hold, the mean of both ways. Rows that a
    # half does not have are in no order, so all of them together are the last.
    counts_2R = _counts_by(group_N % 2, 2, lookups.values_N, len(counts_R))
    outside_R = np.zeros(len(counts_R))
    for one_R, other_R in ((counts_2R[0], counts_2R[1]), (counts_2R[1], counts_2R[0])):
        order_R = np.argsort(-one_R, kind="stable")
        of_other_R = np.where(one_R[order_R] > 0, other_R[order_R], 0)
        outside_R += of_other_R.cumsum() / max(1, other_R.sum()) / 2
    outside_R[-1] = 1.0
    whole_R = jackknife.fraction * inside_R + (1 - jackknife.fraction) * outside_R
    low = rows_of_share(inside_R, np.clip(SHARES - half, 0, 1))
    high = rows_of_share(whole_R, np.clip(SHARES + half, 0, 1))
    return {"value": rows.tolist(), "low": low.tolist(), "high": high.tolist()}
