# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines DIN, which weighs each item of a history by what it says of the candidate.

Zhou et al., 1706.06978. Shape letters: B samples, F dense features, D width of a vector, L labels.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nemo_vfm.core.types.model_cost import Op
from nemo_vfm.models.recommenders.dense_input import Missing, dense_input, dense_size, require_dense
from nemo_vfm.models.recommenders.feature_vectors import Stage, look_up, require_stages
from nemo_vfm.models.recommenders.history_rows import history_rows
from nemo_vfm.models.recommenders.initial_values import draw_weights, first_weight
from nemo_vfm.models.recommenders.interest import LocalActivation
from nemo_vfm.models.recommenders.perceptron import Perceptron, logits_of
from nemo_vfm.models.recommenders.ranking_ops import ids_read, lookup_ops
from nemo_vfm.models.recommenders.shared_rows import Shared, require_shareable
from nemo_vfm.models.recommenders.table_choice import RowDtype, chosen_tables, features_of, other_features
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer
from nemo_vfm.sparse.tables.table_spec import TableSpec


class DIN(nn.Module):
    """Local activation of a history by the candidate, and a perceptron over it, the candidate and all other features.

    Vectors of several features of an item (such as item and category) stand one behind the other. Dense numbers join
    them as they are.

    Args:
        dense: F, 0 or more.
        history: feature of the history -> feature of the candidate that it is compared with; both have one table.
        activation: widths of the inner layers of the local activation.
        top: widths of the top perceptron's layers with a ReLU; one that gives the logits comes behind them.
        table_optimizer: updates the tables' rows.
        width: D, of every table.
        rows: of each feature but the histories the rows of a table of its own, see `tables`.
        dtype: of the tables of `rows`.
        tables: in place of `rows`, tables one by one; those of histories give sequences.
        num_labels: L.
        missing: whether missing dense numbers (NaN) are refused, or are zeros with an indicator of their own.
        deduplicated: group of the batch -> up to where it is computed on its unique rows. The local activation needs
            the candidate, a foreign feature, so a history can be looked up, but not attended, on unique rows.
        allow: [foreign_features] lets a group be attended: with the candidate of the first sample of each row, which
            gives another result.

    Raises:
        ValueError: numbers or names that do not fit together, or a group is to be attended.
    """

    def __init__(
        self, *, dense: int, history: Mapping[str, str], activation: Sequence[int], top: Sequence[int],
        table_optimizer: RowOptimizer, width: int, rows: Mapping[str, int] | None = None, dtype: RowDtype = "fp32",
        tables: Mapping[str, TableSpec] | None = None, num_labels: int = 1, missing: Missing = "refuse",
        deduplicated: Mapping[str, Stage] | None = None, allow: Sequence[Shared] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        require_dense(dense, missing)
        self.dense, self.missing, self.history, self.allow = dense, missing, dict(history), tuple(allow)
        self.deduplicated = dict(deduplicated or {})
        why = "its attention reads the candidate, a foreign feature (allow: [foreign_features])"
        require_stages(self.deduplicated, "attend" if "foreign_features" in allow else "pool", why)
        specs = chosen_tables(rows, width, dtype, tables, self.history)
        self.features, self.others = features_of(specs.values()), other_features(specs, self.history)
        self.tables = FusedTables(specs, table_optimizer, seed=torch.initial_seed())
        self.attention = LocalActivation(len(self.history) * width, activation)
        vectors = len(self.others) + 2 * len(self.history)
        self.top = Perceptron(dense_size(dense, missing) + vectors * width, top, num_labels)
        require_shareable(self.attention, self.deduplicated, allow)
        draw_weights(self, torch.initial_seed())

    def initial_weight(self, name: str, shape: torch.Size, seed: int) -> Tensor:
        """The first value of one parameter."""
        return first_weight(name, shape, seed)

    def forward(self, batch: FeatureBatch) -> Tensor:
        """Logits (B, L), in fp32 at least.

        Raises:
            DataError: the batch lacks a feature, lengths of a history differ, or a dense number is missing.
        """
        dtype = next(self.top.parameters()).dtype
        found = look_up(self.tables, batch, self.features, self.deduplicated, dtype)
        rows = history_rows(batch, found, tuple(self.history), None, self.allow)
        candidate = torch.cat([found[name].bags() for name in self.history.values()], dim=1)
        interest = rows.expand(self.attention(rows.joined, rows.of_rows(candidate)))
        dense = dense_input(batch.dense_BF, self.dense, self.missing, dtype)
        others = [found[name].bags() for name in self.others]
        return logits_of(self.top(torch.cat([dense, *others, candidate, interest], dim=1)))

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The arithmetic of one forward pass."""
        samples = inputs["dense_BF"][0]
        items = ids_read(inputs, next(iter(self.history)), samples, "attend" in self.deduplicated.values())
        return [
            *lookup_ops(self.tables, inputs, bool(self.deduplicated)),
            Op("linear", self.top.flops(samples), "perceptron"),
            Op("linear", self.attention.flops(items), "local activation"),
        ]
