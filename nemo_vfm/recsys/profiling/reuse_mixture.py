"""Fits a mixture of Poisson rates to a histogram of reuse, and draws ids from a table of such rows.

Shape letters: K rates of the grid, R rows of the table.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_vfm.recsys.profiling.locality_stats import EDGES, ReuseHistogram

_CHUNK = 1_000_000  # ids drawn at once: bounds the memory
_LARGEST_RATE = 1e5  # higher ones need so few rows that a finite table cannot hold their share
_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ReuseMixture:
    """Share w_k of the touched rows has the rate l_k: its lookups are Poisson, given that there is at least one."""

    rates_K: _Floats  #: lookups that a row of this kind expects in a batch
    weights_K: _Floats  #: share of the rows that are looked up; they add up to 1

    def rates(self, num_touched: float) -> _Floats:
        """Rates of a table of which about `num_touched` rows are looked up, the others included: (R,).

        Stratified: the row counts follow the weights to within one row, so that only the Poisson draws are random.
        """
        last = np.rint(self._rows_up_to() * num_touched).astype(np.int64)
        return np.repeat(self.rates_K, last - np.append(0, last[:-1]))

    def rates_of_rows(self, rows: int) -> _Floats:
        """Rates of a table of `rows` rows, those that are not looked up included: (R,)."""
        return self.rates(rows / self._rows_up_to()[-1])

    def _rows_up_to(self) -> _Floats:
        """Rows of this rate or a lower one, for each row that is looked up."""
        return np.cumsum(self.weights_K / -np.expm1(-self.rates_K))


def fit(histogram: ReuseHistogram, num_rates: int = 200) -> ReuseMixture:
    """Least squares over both histograms and the sum of weights, with weights of 0 or more."""
    rates = np.geomspace(0.1, _LARGEST_RATE, num_rates)
    # Given at least one lookup: P(count in bin), and E[count; count in bin], (17, K) each.
    touched = -np.expm1(-rates)
    at_most = _poisson_cdf(EDGES, rates)
    below = _poisson_cdf(EDGES - 1, rates)  # E[X; X <= n] = rate P(X <= n - 1)
    rows = np.diff(np.vstack([np.exp(-rates), at_most, np.ones_like(rates)]), axis=0)
    accesses = rates * np.diff(np.vstack([np.zeros_like(rates), below, np.ones_like(rates)]), axis=0)
    rows, accesses = rows / touched, accesses / touched
    target = np.concatenate([histogram.rows, histogram.accesses, [1.0]])
    weights = nonnegative_min_squares(np.vstack([rows, accesses / histogram.mean, np.ones(num_rates)]), target)
    return ReuseMixture(rates[weights > 0], weights[weights > 0] / weights.sum())


def draw_counts(rates_R: _Floats, seed: int) -> NDArray[np.int64]:
    """Lookups of each row after sum(rates) ids were drawn, each row in proportion to its rate: (R,)."""
    numbers, ends = np.random.default_rng(seed), np.cumsum(rates_R)
    counts, left = np.zeros(len(rates_R), np.int64), round(float(ends[-1]))
    while left:
        size = min(left, _CHUNK)
        ids = np.searchsorted(ends, np.sort(numbers.random(size)) * ends[-1], side="right")
        unique, times = np.unique(ids, return_counts=True)
        counts[unique] += times
        left -= size
    return counts


def nonnegative_min_squares(a: _Floats, b: _Floats) -> _Floats:
    """The x >= 0 with the least |a x - b|, by the active-set method of Lawson and Hanson."""
    x, free = np.zeros(a.shape[1]), np.zeros(a.shape[1], bool)
    for _ in range(3 * a.shape[1]):
        slope = np.where(free, -np.inf, a.T @ (b - a @ x))
        if slope.max() <= 1e-10:
            break
        free[slope.argmax()] = True
        x = _inside(a, b, x, free)
    return x


def _inside(a: _Floats, b: _Floats, x: _Floats, free: NDArray[np.bool_]) -> _Floats:
    """Go to the least squares of the free places; what would fall below 0 on the way is no longer free."""
    while True:
        goal = np.zeros_like(x)
        goal[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
        below = free & (goal <= 0)
        if not below.any():
            return goal
        steps = np.full(len(x), np.inf)
        steps[below] = x[below] / (x[below] - goal[below])  # the part of the way at which each reaches 0
        first = steps.argmin()
        x = x + steps[first] * (goal - x)
        free[first], x[first] = False, 0


def _poisson_cdf(counts: NDArray[np.int64], rates: _Floats) -> _Floats:
    """P(X <= count), (counts, K): the regularised upper incomplete gamma function of count + 1."""
    places, at = torch.as_tensor(counts[:, None] + 1.0), torch.as_tensor(rates)[None]
    return np.asarray(torch.special.gammaincc(places, at).numpy())
