"""Measures batches of a clustered log: how far groups of features deduplicate, how often rows are looked up again.

Shape letters: B samples, P batches.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.profiling.jackknife import Floats, Jackknife, ratio
from nemo_vfm.recsys.profiling.locality_stats import ReuseHistogram
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.row_deduplication import row_changes


def dedupe_sums(features: Sequence[Jagged], batch_size: int) -> Floats:
    """Samples of each batch, and rows stored for them where each is compared with the one before: (P, 2)."""
    changed_B = row_changes(features)
    spans = _batches(len(changed_B), batch_size)
    return np.array([(end - begin, 1 + int(changed_B[begin + 1 : end].sum())) for begin, end in spans], np.float64)


def reuse(lookups: Jagged, batch_size: int, jackknife: Jackknife) -> dict[str, Json]:
    """The 17-bin histograms of lookups a row in a batch, over all batches, and their mean; see `ReuseHistogram`.

    Intervals are of the jackknife over batches.

    Args:
        lookups: the rows of its table that each sample looks up.
    """
    counts_P34 = _reuse_counts(lookups, batch_size)
    mean = jackknife.estimate(counts_P34, lambda sums: np.asarray(sums[..., 17:].sum(-1) / sums[..., :17].sum(-1)))
    return {
        "rows": jackknife.estimate(counts_P34, lambda sums: _shares(sums[..., :17])),
        "accesses": jackknife.estimate(counts_P34, lambda sums: _shares(sums[..., 17:])),
        "mean": mean,
    }


def measured_factor(features: Sequence[Jagged], batch_size: int, jackknife: Jackknife) -> dict[str, Json]:
    """Samples a stored row in batches; the interval is of the jackknife over batches."""
    return jackknife.estimate(dedupe_sums(features, batch_size), ratio(0, 1))


def num_batches(num_samples: int, batch_size: int) -> int:
    """How many are measured: whole ones, or one that is not where the log has no more."""
    return max(1, num_samples // batch_size)


def _batches(num_samples: int, batch_size: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, num_batches(num_samples, batch_size) * batch_size, batch_size):
        yield begin, min(begin + batch_size, num_samples)


def _reuse_counts(lookups: Jagged, batch_size: int) -> Floats:
    """Of each batch the rows in each of the 17 bins, then their lookups."""
    found = []
    for begin, end in _batches(len(lookups), batch_size):
        first, last = lookups.offsets[[begin, end]].tolist()
        counts = torch.unique(lookups.values_N[first:last], return_counts=True)[1].numpy()
        found.append(_bins(counts))
    return np.stack(found)


def _shares(bins: Floats) -> Floats:
    return np.asarray(bins / bins.sum(-1, keepdims=True))


def _bins(counts: NDArray[np.int64]) -> Floats:
    if not len(counts):
        return np.zeros(34)
    shares = ReuseHistogram.of_counts(counts)
    return np.concatenate([shares.rows * len(counts), shares.accesses * counts.sum()])
