"""Reads from a batch what every recommender reads: dense numbers, vectors of features, histories and their candidate.

Shape letters: B samples, X dense numbers as read, D width of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nemo_vfm.core.types.model_cost import Op
from nemo_vfm.models.recommenders.dense_input import Missing, dense_input, require_dense
from nemo_vfm.models.recommenders.feature_vectors import Stage, feature_rows, look_up, require_groups
from nemo_vfm.models.recommenders.history_rows import HistoryRows, history_rows
from nemo_vfm.models.recommenders.perceptron import Perceptron
from nemo_vfm.models.recommenders.ranking_ops import ids_read, lookup_ops
from nemo_vfm.models.recommenders.shared_rows import Shared
from nemo_vfm.models.recommenders.table_choice import features_of, other_features
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.tables.fused_tables import FusedTables


@dataclass(frozen=True)
class HistoryInput:
    """What a model over histories reads.

    Args:
        rest: dense numbers (B, X), and the bags (B, D) of each feature that is neither history nor candidate.
        candidates: the bags (B, D) of the features that the histories are compared with.
        rows: the histories.
    """

    rest: Sequence[Tensor]
    candidates: Sequence[Tensor]
    rows: HistoryRows

    def beside(self, user_RD: Tensor) -> Tensor:
        """All that the top perceptron reads of a vector of the user: rest, candidate, user and candidate * user."""
        user_BD, candidate_BD = self.rows.expand(user_RD), torch.stack(list(self.candidates)).sum(0)
        return torch.cat([*self.rest, candidate_BD, user_BD, candidate_BD * user_BD], dim=1)


@dataclass(frozen=True)
class FeatureInput:
    """How a model reads a batch; the weights are elsewhere.

    Args:
        dense: number of dense features.
        missing: what a missing dense number is.
        deduplicated: group of the batch -> up to where it is computed on its unique rows.
        history: feature of the history -> feature of the candidate; empty where the model has no histories.
        allow: what samples of one row may share.
        times: feature of the history's times, if the model reads them.

    Raises:
        ValueError: the number of dense features or `missing` is none.
    """

    dense: int
    missing: Missing
    deduplicated: Mapping[str, Stage]
    history: Mapping[str, str] = field(default_factory=dict)
    allow: Sequence[Shared] = ()
    times: str | None = None

    def __post_init__(self) -> None:
        require_dense(self.dense, self.missing)

    def require_columns(self, tables: FusedTables, batch: FeatureBatch) -> None:
        """Check that a batch has what the model reads; a batch without samples will do.

        Raises:
            DataError: it lacks a feature or a group, or has another number of dense features.
        """
        for name in (*features_of(tables.tables.values()), *([self.times] if self.times else [])):
            feature_rows(batch, name)
        require_groups(batch, self.deduplicated)
        self.dense_numbers(batch, batch.dense_BF.dtype)

    def dense_numbers(self, batch: FeatureBatch, dtype: torch.dtype) -> Tensor:
        """(B, X), see `dense_input`."""
        return dense_input(batch.dense_BF, self.dense, self.missing, dtype)

    def bags(self, tables: FusedTables, batch: FeatureBatch, dtype: torch.dtype) -> list[Tensor]:
        """Of all features of the tables, (B, D) each.

        Raises:
            DataError: see `look_up`.
        """
        found = look_up(tables, batch, features_of(tables.tables.values()), self.deduplicated, dtype)
        return [vectors.bags() for vectors in found.values()]

    def histories(self, tables: FusedTables, batch: FeatureBatch, dtype: torch.dtype) -> HistoryInput:
        """What a model over histories reads.

        Raises:
            DataError: see `dense_input`, `look_up` and `history_rows`.
        """
        found = look_up(tables, batch, features_of(tables.tables.values()), self.deduplicated, dtype)
        return HistoryInput(
            [
                self.dense_numbers(batch, dtype),
                *(found[name].bags() for name in other_features(tables.tables, self.history)),
            ],
            [found[name].bags() for name in self.history.values()],
            history_rows(batch, found, tuple(self.history), self.times, self.allow),
        )

    def ops(self, tables: FusedTables, inputs: Mapping[str, tuple[int, ...]], *perceptrons: Perceptron) -> list[Op]:
        """The lookups, and the arithmetic of perceptrons that run once a sample."""
        flops = sum(one.flops(inputs["dense_BF"][0]) for one in perceptrons)
        name = "perceptrons" if len(perceptrons) > 1 else "perceptron"
        return [*lookup_ops(tables, inputs, bool(self.deduplicated)), Op("linear", flops, name)]

    def attended(self, inputs: Mapping[str, tuple[int, ...]]) -> tuple[float, float]:
        """(rows, items) of the histories that attention runs over, see `lookup_ops`."""
        feature, on_unique_rows = next(iter(self.history)), "attend" in self.deduplicated.values()
        samples = inputs["dense_BF"][0]
        rows = inputs.get(f"{feature}.lengths", (samples,))[0] if on_unique_rows else samples
        return float(rows), ids_read(inputs, feature, samples, on_unique_rows)
