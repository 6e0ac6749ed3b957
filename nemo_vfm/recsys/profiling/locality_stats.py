"""Reads histograms of how often the rows of embedding tables were looked up."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError

#: Upper edges of the bins (0, 1], (1, 2], (2, 4] ... (16384, 32768]; the 17th bin is above the last.
EDGES = 2 ** np.arange(16)


@dataclass(frozen=True, eq=False)
class ReuseHistogram:
    """Of the rows that were looked up at least once in a batch."""

    rows: NDArray[np.float64]  #: share of these rows in each of the 17 bins of lookups a row
    accesses: NDArray[np.float64]  #: share of all lookups that went to the rows of each bin
    mean: float  #: lookups a row

    @staticmethod
    def of_counts(counts: NDArray[np.int64]) -> "ReuseHistogram":
        """From the number of lookups of each row; rows without any do not count."""
        counts = counts[counts > 0]
        bins = np.searchsorted(EDGES, counts)
        rows, accesses = np.bincount(bins, minlength=17), np.bincount(bins, weights=counts, minlength=17)
        return ReuseHistogram(rows / len(counts), accesses / counts.sum(), float(counts.mean()))


def first_histogram(path: Path) -> ReuseHistogram:
    """The first section of a `locality_stats` file: one batch of all tables."""
    text = path.read_text()
    shares = [float(share) for share in re.findall(r"^\(\d+(?:, \d+\]|\+): (\d\.\d+)", text, re.M)[:34]]
    totals = [re.search(rf"^Avg # of {what}: (\d+)", text, re.M) for what in ("indices", "unique cols")]
    if len(shares) != 34 or totals[0] is None or totals[1] is None:
        raise DataError(
            f"{path} does not hold two histograms of 17 bins with totals; is it a complete locality_stats file?"
        )
    mean = int(totals[0][1]) / int(totals[1][1])
    return ReuseHistogram(np.array(shares[:17]), np.array(shares[17:]), mean)
