"""Counts distinct ids exactly up to a limit, and estimates their number beyond it.

Shape letters: N ids, K kept ids.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nemo_vfm.recsys.profiling.jackknife import student_t
from nemo_vfm.sparse.row_fingerprint import mix64_

_SALT = 0x5851F42D4C957F2D  # unlike those that choose sessions


class ValueSketch:
    """Keeps the `limit` ids with the smallest 64-bit hashes, and how often each came.

    The hash is a bijection, so up to `limit` distinct ids the count is exact. Beyond, with u the largest kept hash as
    a share of all hashes, (K - 1) / u is an unbiased estimate of the distinct ids with a relative error of
    1 / sqrt(K - 2) (KMV: Bar-Yossef et al., RANDOM 2002; Beyer et al., SIGMOD 2007). The kept ids are a random sample
    of the distinct ones, and their counts are exact, since an id below the last threshold was below all before.

    Args:
        limit: ids at most; 16 bytes each.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.exact = limit, True
        self._hashes_K = np.empty(0, np.int64)
        self.counts_K: NDArray[np.int64] = np.empty(0, np.int64)

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
