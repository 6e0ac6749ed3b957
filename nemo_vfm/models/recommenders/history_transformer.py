"""Defines a transformer over histories, whose result is a vector of the user.

Shape letters: B samples, F dense features, D width of a vector, L labels.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nemo_vfm.core.types.model_cost import Op
from nemo_vfm.models.recommenders.dense_input import Missing, dense_size
from nemo_vfm.models.recommenders.feature_input import FeatureInput
from nemo_vfm.models.recommenders.feature_vectors import Stage, require_stages
from nemo_vfm.models.recommenders.history_encoder import HistoryEncoder
from nemo_vfm.models.recommenders.initial_values import draw_weights, first_weight
from nemo_vfm.models.recommenders.perceptron import Perceptron, logits_of
from nemo_vfm.models.recommenders.shared_rows import Shared, require_shareable
from nemo_vfm.models.recommenders.table_choice import RowDtype, Rows, chosen_tables, other_features
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer
from nemo_vfm.sparse.tables.table_spec import TableSpec


class HistoryTransformer(nn.Module):
    """A transformer encodes the history; a perceptron reads its mean, the candidate, their product and all else.

    Vectors of several features of an item (such as item and category) are added. Dense numbers are read as they are.

    Args:
        dense: F, 0 or more.
        history: feature of the history -> feature of the candidate that has one table with it; the oldest item first.
        longest: items that are kept of a history, the last ones.
        depth: number of blocks.
        heads: of attention; they divide `width`.
        mlp_hidden: width inside of a block's perceptron.
        top: widths of the top perceptron's layers with a ReLU; one that gives the logits comes behind them.
        table_optimizer: updates the tables' rows.
        width: D, of every table and of the blocks.
        rows: for each feature but the histories, the rows of its own table, see `tables`; `auto` takes those that
            the data names.
        dtype: of the tables of `rows`.
        tables: in place of `rows`, tables one by one; those of histories give sequences.
        num_labels: L.
        dropout: after each attention and perceptron; a function of seed, step and sample.
        missing: whether missing dense numbers (NaN) are refused, or are zeros with their own indicator.
        deduplicated: group of the batch -> up to where it is computed on its unique rows; `attend` for the whole user's
            vector, if all features of the history are in the group.
        allow: what samples of one row may share although the result then differs: dropout, foreign_features.

    Raises:
        ValueError: numbers or names that do not fit together, or something that samples would share is not allowed.
    """

    def __init__(
        self, *, dense: int, history: Mapping[str, str], longest: int, depth: int, heads: int, mlp_hidden: int,
        top: Sequence[int], table_optimizer: RowOptimizer, width: int,
        rows: Rows | None = None, dtype: RowDtype = "fp32",
        tables: Mapping[str, TableSpec] | None = None, num_labels: int = 1, dropout: float = 0.0,
        missing: Missing = "refuse", deduplicated: Mapping[str, Stage] | None = None, allow: Sequence[Shared] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self.input = FeatureInput(dense, missing, dict(deduplicated or {}), dict(history), tuple(allow))
        require_stages(self.input.deduplicated, "attend", "nothing comes behind")
        specs = chosen_tables(rows, width, dtype, tables, history)
        others = other_features(specs, history)
        self.tables = FusedTables(specs, table_optimizer, seed=torch.initial_seed())
        self.encoder = HistoryEncoder(
            width=width, depth=depth, heads=heads, hidden=mlp_hidden, longest=longest, dropout=dropout
        )
        self.top = Perceptron(dense_size(dense, missing) + (len(others) + 3) * width, top, num_labels)
        require_shareable(self.encoder, self.input.deduplicated, allow)
        draw_weights(self, torch.initial_seed())

    initial_weight = staticmethod(first_weight)

    def require_columns(self, batch: FeatureBatch) -> None:
        """See `RequiresColumns`."""
        self.input.require_columns(self.tables, batch)

    def forward(self, batch: FeatureBatch) -> Tensor:
        """Logits (B, L), in fp32 at least.

        Raises:
            DataError: the batch lacks a feature, lengths of a history differ, a feature of it is from outside of the
                group that is attended, or a dense number is missing and must not.
        """
        dtype = next(self.top.parameters()).dtype
        read = self.input.histories(self.tables, batch, dtype)
        user_RD = self.encoder(read.rows.added, read.rows.places)
        return logits_of(self.top(read.beside(user_RD)))

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The arithmetic of one forward pass; histories are counted as if all were of the mean length."""
        encoder_ops = self.encoder.ops(*self.input.attended(inputs))
        return [*self.input.ops(self.tables, inputs, self.top), *encoder_ops]
