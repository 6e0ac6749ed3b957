"""Measures the sampled sessions of a log chunk by chunk, in memory that does not grow with the log.

Shape letters: R rows, N ids.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.recsys.profiling.session_sample import SessionReservoir
from nemo_vfm.recsys.profiling.session_sums import SessionSums
from nemo_vfm.recsys.profiling.table_counts import Counts
from nemo_vfm.recsys.profiling.table_rows import TableRows
from nemo_vfm.recsys.profiling.value_sketch import ValueSketch
from nemo_vfm.sparse.log_chunk import LogChunk


class LogMeasurements:
    """What is summed and counted in one pass.

    Args:
        features: their names.
        tables: of some features, the rows that their ids look up.
        fraction: of the sessions of the log, that are given to it.
        max_ids: distinct ids a feature that are counted exactly.
        max_values: ids and samples of the sessions that are kept.
        seed: see `session_uniform`.

    Raises:
        UserError: a table is of no feature.
    """

    def __init__(
        self, features: Sequence[str], tables: Mapping[str, TableRows], *, fraction: float, max_ids: int,
        max_values: int, seed: int,
    ) -> None:  # fmt: skip
        if unknown := sorted(tables.keys() - set(features)):
            raise UserError(f"tables: the log has no feature {unknown[0]}; it has {', '.join(features)}")
        self.tables = tables
        self.sums = SessionSums(features, seed)
        self.sessions = ValueSketch(max_ids)
        self.ids = {name: ValueSketch(max_ids) for name in features}
        self.lengths: dict[str, Counts] = {name: np.zeros(0, np.int64) for name in features}
        self.counts_R = {name: np.zeros(table.rows, np.int64) for name, table in tables.items()}
        self.kept = SessionReservoir(fraction, max_values, seed)

    def add(self, chunk: LogChunk) -> None:
        """Measure these samples, which come after those before."""
        self.sums.add(chunk)
        self.sessions.add(torch.unique_consecutive(chunk.session_B))
        self.kept.add(chunk)
        for name, feature in chunk.features.items():
            self.ids[name].add(feature.values_N)
            self.lengths[name] = _added(self.lengths[name], np.bincount(feature.lengths_B.numpy()))
            if name in self.tables:
                np.add.at(self.counts_R[name], self.tables[name].of(feature.values_N, name).numpy(), 1)


def _added(one: Counts, other: Counts) -> Counts:
    """The sum of two arrays, the shorter one filled with zeros."""
    total = np.zeros(max(len(one), len(other)), np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total
