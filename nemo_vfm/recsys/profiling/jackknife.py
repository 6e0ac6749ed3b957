"""Gives intervals to figures of a sample of sessions, by the delete-a-group jackknife.

Shape letters: G groups of sessions, K sums.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.json_value import Json

Floats: TypeAlias = NDArray[np.float64]
#: Sums (..., K) -> one figure (...), or several (..., F).
Statistic: TypeAlias = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Jackknife:
    """Intervals of figures that are functions of sums over sessions.

    With t_g the figure without group g, the standard error is sqrt((G - 1) / G sum_g (t_g - mean)^2). It is multiplied
    by sqrt(1 - fraction), the correction for a finite population: where all sessions were read, nothing is uncertain.
    """

    confidence: float  #: how often an interval should hold the figure of the whole log, between 0 and 1
    fraction: float  #: share of the log's sessions that the sums are of

    def half_width(self, sums_GK: Floats, statistic: Statistic) -> Floats:
        """Half of each interval; NaN where there are fewer than two groups, or a figure is undefined without one."""
        groups = len(sums_GK)
        if self.fraction >= 1:
            return np.zeros_like(_figures(sums_GK.sum(0), statistic))
        if groups < 2:
            return np.full_like(_figures(sums_GK.sum(0), statistic), math.nan)
        without = _figures(sums_GK.sum(0) - sums_GK, statistic)
        error = np.sqrt((groups - 1) * without.var(axis=0) * (1 - self.fraction))
        return np.asarray(error * student_t(self.confidence, groups - 1))

    def estimate(self, sums_GK: Floats, statistic: Statistic) -> dict[str, Json]:
        """The figure of all groups and the ends of its interval: `value`, `low`, `high`; None where undefined."""
        value, half = _figures(sums_GK.sum(0), statistic), self.half_width(sums_GK, statistic)
        return {"value": as_json(value), "low": as_json(value - half), "high": as_json(value + half)}


def ratio(above: int, below: int) -> Statistic:
    """The statistic sums[above] / sums[below]."""
    return lambda sums: np.asarray(sums[..., above] / sums[..., below])


def student_t(confidence: float, degrees: int) -> float:
    """Two-sided quantile of Student's t, by the expansion of Abramowitz and Stegun, 26.7.5.

    Within 0.1 % from ten degrees of freedom on, at a confidence of up to 0.99.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def as_json(value: Floats) -> Json:
    """A number, or a list of numbers; what is not finite becomes None."""
    found = np.where(np.isfinite(value), value, None)  # type: ignore[call-overload]
    return found.tolist()


def _figures(sums: Floats, statistic: Statistic) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(statistic(sums), np.float64)
