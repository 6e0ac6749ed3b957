"""Counts how often each row of a table was looked up, and says how skewed and how stable the counts are.

Shape letters: N ids, R rows, W time windows.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.profiling.jackknife import Floats, as_json

Counts = NDArray[np.int64]
#: The shares of accesses at which the ICDF is given: 0, 0.01 ... 1.
SHARES = np.arange(101) / 100


def add_counts(counts_WR: Counts, row_N: Tensor, window_N: Tensor) -> None:
    """Count lookups of these rows in these windows, in place."""
    np.add.at(counts_WR.reshape(-1), (window_N * counts_WR.shape[1] + row_N).numpy(), 1)


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


def expected_occupied(distinct: float, rows: int) -> float:
    """Rows that a random hash of so many ids occupies: R (1 - e^(-n / R))."""
    return float(rows * -np.expm1(-distinct / rows))


def drift(counts_WR: Counts, hot_share: float) -> dict[str, Json]:
    """How the lookups change from each window to the next.

    `distance` is the total variation distance of the shares, half the sum of |p - q| over the rows: 0 for equal
    windows, 1 for disjoint ones. `hot_set_stays` is the share of a window's hot set (the least rows that hold
    `hot_share` of its lookups) that is in the next one's. None where a window has no lookups.
    """
    pairs = list(pairwise(counts_WR))
    return {
        "distance": [_distance(one, other) for one, other in pairs],
        "hot_set_stays": [_stays(one, other, hot_share) for one, other in pairs],
    }


def _distance(one_R: Counts, other_R: Counts) -> Json:
    with np.errstate(invalid="ignore"):
        return as_json(np.asarray(np.abs(one_R / one_R.sum() - other_R / other_R.sum()).sum() / 2))


def _stays(one_R: Counts, other_R: Counts, hot_share: float) -> Json:
    if not one_R.any() or not other_R.any():
        return None
    one, other = _hot_set(one_R, hot_share), _hot_set(other_R, hot_share)
    return float(np.isin(one, other).mean())


def _hot_set(counts_R: Counts, hot_share: float) -> Counts:
    order_R = np.argsort(-counts_R, kind="stable")
    return order_R[: rows_of_share(counts_R[order_R].cumsum(), np.array([hot_share]))[0]]
