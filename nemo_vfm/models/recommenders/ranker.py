"""Defines what rankers share: how they read a batch, their tables and first weights; and rankers by a history.

Shape letters: B samples, R rows, D width of a vector, L labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.models.blocks.layers import draw_weights
from nemo_vfm.models.recommenders.feature_input import (
    FeatureInput,
    dense_size,
    feature_rows,
    features_of,
    other_features,
    require_groups,
    require_shareable,
    require_stages,
)
from nemo_vfm.models.recommenders.ranker_layers import RankerMLP, first_weight, logits_of
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer
from nemo_vfm.sparse.tables.table_spec import TableSpec


class Ranker(nn.Module):
    """Reads features through embedding tables and gives logits; its heirs say what lies between."""

    input: FeatureInput  #: how it reads a batch
    tables: FusedTables
    initial_weight = staticmethod(first_weight)

    def features(self) -> tuple[str, ...]:
        """The features of a batch that it needs, in the order of its tables; times of a history last."""
        times = () if self.input.times is None else (self.input.times,)
        return (*features_of(self.tables.tables.values()), *times)

    def require_columns(self, batch: FeatureBatch) -> None:
        for name in self.features():
            feature_rows(batch, name)
        require_groups(batch, self.input.deduplicated)
        self.input.dense_numbers(batch, batch.dense_BF.dtype)


class HistoryRanker(Ranker):
    """An encoder makes a vector of the user of a history; a perceptron reads it, the candidate, their product and rest.

    Vectors of several features of an item (such as item and category) are added. Dense numbers are read as they are.

    Args:
        reads: how a batch is read.
        specs: of the tables.
        table_optimizer: updates their rows.
        encoder: a module with a `width`, D, and `ops`, called with the histories, `DropoutPlaces`, and times if read.
        top: widths of the top perceptron's layers with a ReLU; one that gives the logits comes behind them.
        num_labels: L.
    """

    encoder: Any

    def __init__(
        self, reads: FeatureInput, specs: dict[str, TableSpec], table_optimizer: RowOptimizer, encoder: Any,
        top: Sequence[int], num_labels: int,
    ) -> None:  # fmt: skip
        super().__init__()
        require_stages(reads.deduplicated, "attend", "nothing comes behind")
        vectors = len(other_features(specs, reads.history)) + 3
        self.input = reads
        self.tables = FusedTables(specs, table_optimizer, seed=torch.initial_seed())
        self.encoder = encoder
        self.top = RankerMLP(dense_size(reads.dense, reads.missing) + vectors * encoder.width, top, num_labels)
        require_shareable(encoder, reads.deduplicated, reads.allow)
        draw_weights(self, first_weight, torch.initial_seed())

    def forward(self, batch: FeatureBatch) -> Tensor:
        """Logits (B, L), in fp32 at least."""
        read = self.input.histories(self.tables, batch, next(self.top.parameters()).dtype)
        rows = read.rows
        added = Jagged(torch.stack([one.values_N for one in rows.vectors]).sum(0), rows.vectors[0].lengths_B)
        user_RD = self.encoder(added, rows.places, *([] if rows.times is None else [rows.times]))
        user_BD, candidate_BD = rows.expand(user_RD), torch.stack(list(read.candidates)).sum(0)
        return logits_of(self.top(torch.cat([*read.rest, candidate_BD, user_BD, candidate_BD * user_BD], dim=1)))

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The arithmetic of one forward pass; histories are counted as if all were of the mean length."""
        return [*self.input.ops(self.tables, inputs, self.top), *self.encoder.ops(*self.input.attention_sizes(inputs))]
