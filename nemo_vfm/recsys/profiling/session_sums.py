"""Sums what is asked of each feature over groups of sessions: coverage, lengths, changes from sample to sample.

Shape letters: B samples, G groups of sessions, K sums.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nemo_vfm.recsys.profiling.jackknife import Floats, Statistic
from nemo_vfm.recsys.profiling.session_sample import session_uniform
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import row_changes

NUM_GROUPS = 32
#: The sums over all features, and those of one, which follow them.
SAMPLES, SESSIONS = 0, 1
COVERED, VALUES, CHANGES = 0, 1, 2


class SessionSums:
    """Sums over the samples of a log, apart for `NUM_GROUPS` groups of its sessions.

    Args:
        features: their names.
        seed: see `session_uniform`.
    """

    def __init__(self, features: Sequence[str], seed: int) -> None:
        self.features, self.seed = tuple(features), seed
        self.sums_GK: Floats = np.zeros((NUM_GROUPS, 2 + 3 * len(self.features)))
        self._last: LogChunk | None = None

    def add(self, chunk: LogChunk) -> None:
        """Sum these samples, which come after those before."""
        begins_B = ~same_session(chunk.session_B, self._last.session_B if self._last else None)
        columns = [torch.ones_like(begins_B), begins_B]
        for name in self.features:
            feature = chunk.features[name]
            changed_B = _changes(feature, self._last.features[name] if self._last else None)
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


def same_session(session_B: Tensor, before: Tensor | None) -> Tensor:
    """Whether a sample is of the session of the one before: bool, B.

    Args:
        before: the session of the sample before the first, one number; None where there is none.
    """
    same_B = torch.zeros_like(session_B, dtype=torch.bool)
    same_B[1:] = session_B[1:] == session_B[:-1]
    if before is not None:
        same_B[:1] = session_B[:1] == before
    return same_B


def _changes(feature: Jagged, before: Jagged | None) -> Tensor:
    """`row_changes`, the first row compared with the one before it."""
    changed_B = row_changes([feature])
    if before is not None:
        changed_B[:1] = row_changes([Jagged.cat([before, feature.rows(0, 1)])])[1:]
    return changed_B
