"""Bounds how many rows hold a share of a log's lookups, where only a sample of its sessions was read.

Shape letters: B samples, R rows, N ids, G groups of sessions.
"""

import numpy as np
from torch import Tensor

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.profiling.jackknife import Floats, Jackknife
from nemo_vfm.recsys.profiling.session_sums import NUM_GROUPS
from nemo_vfm.recsys.profiling.table_counts import SHARES, Counts, add_counts, icdf, rows_of_share
from nemo_vfm.sparse.jagged import Jagged


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
    half = jackknife.half_width(_sums_by_point(counts_R, rows, lookups.values_N, group_N), _shares) * kept_share**0.5
    half = np.nan_to_num(half, nan=1.0)
    inside_R = np.sort(counts_R)[::-1].cumsum() / counts_R.sum()
    outside_R = _held_out_shares(len(counts_R), lookups.values_N, group_N)
    whole_R = jackknife.fraction * inside_R + (1 - jackknife.fraction) * outside_R
    low = rows_of_share(inside_R, np.clip(SHARES - half, 0, 1))
    high = rows_of_share(whole_R, np.clip(SHARES + half, 0, 1))
    return {"value": rows.tolist(), "low": low.tolist(), "high": high.tolist()}


def _sums_by_point(counts_R: Counts, rows: Counts, row_N: Tensor, group_N: Tensor) -> Floats:
    """Lookups of each group by the first point of the ICDF whose rows hold them: (G, 101)."""
    rank_R = np.empty(len(counts_R), np.int64)
    rank_R[np.argsort(-counts_R, kind="stable")] = np.arange(1, len(counts_R) + 1)
    cell_N = group_N.numpy() * len(rows) + np.searchsorted(rows, rank_R[row_N.numpy()])
    return np.bincount(cell_N, minlength=NUM_GROUPS * len(rows)).reshape(NUM_GROUPS, -1).astype(np.float64)


def _shares(sums: Floats) -> Floats:
    return np.asarray(sums.cumsum(-1) / sums.sum(-1, keepdims=True))


def _held_out_shares(num_rows: int, row_N: Tensor, group_N: Tensor) -> Floats:
    """The share of one half's lookups that the first rows by the other half's hold, the mean of both ways: R.

    Rows that a half does not have are in no order, so all of them together are the last.
    """
    counts_2R = np.zeros((2, num_rows), np.int64)
    add_counts(counts_2R, row_N, group_N % 2)
    held = np.zeros(num_rows)
    for one_R, other_R in ((counts_2R[0], counts_2R[1]), (counts_2R[1], counts_2R[0])):
        order_R = np.argsort(-one_R, kind="stable")
        of_other_R = np.where(one_R[order_R] > 0, other_R[order_R], 0)
        held += of_other_R.cumsum() / max(1, other_R.sum()) / 2
    held[-1] = 1.0
    return held
