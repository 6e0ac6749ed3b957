"""Defines DIN, which weighs each item of a history by what it says of the candidate.

Zhou et al., 1706.06978. Shape letters: B samples, F dense features, D width of a vector, L labels.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nemo_vfm.core.types.model_cost import Op
from nemo_vfm.models.recommenders.dense_input import Missing, dense_size
from nemo_vfm.models.recommenders.feature_input import FeatureInput
from nemo_vfm.models.recommenders.feature_vectors import Stage, require_stages
from nemo_vfm.models.recommenders.initial_values import draw_weights, first_weight
from nemo_vfm.models.recommenders.interest import LocalActivation, Rectifier
from nemo_vfm.models.recommenders.perceptron import Perceptron, logits_of
from nemo_vfm.models.recommenders.shared_rows import Shared, require_shareable
from nemo_vfm.models.recommenders.table_choice import RowDtype, Rows, chosen_tables, other_features
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
        rectifier: between those layers, prelu or dice. Dice normalises over the items of a microbatch, so results then
            depend on how a batch is cut; it trains on one rank only.
        top: widths of the top perceptron's layers with a ReLU; one that gives the logits comes behind them.
        table_optimizer: updates the tables' rows.
        width: D, of every table.
        rows: for each feature but the histories, the rows of its own table, see `tables`; `auto` takes those that
            the data names.
        dtype: of the tables of `rows`.
        tables: in place of `rows`, tables one by one; those of histories give sequences.
        num_labels: L.
        missing: whether missing dense numbers (NaN) are refused, or are zeros with their own indicator.
        deduplicated: group of the batch -> up to where it is computed on its unique rows. The local activation needs
            the candidate, a foreign feature, so a history can be looked up, but not attended, on unique rows.
        allow: [foreign_features] lets a group be attended: with the candidate of the first sample of each row, which
            gives another result; with dice, batch_norm must be allowed, too.

    Raises:
        ValueError: numbers or names that do not fit together, or a group is to be attended and that is not allowed.
    """

    def __init__(
        self, *, dense: int, history: Mapping[str, str], activation: Sequence[int], top: Sequence[int],
        table_optimizer: RowOptimizer, width: int, rows: Rows | None = None, dtype: RowDtype = "fp32",
        tables: Mapping[str, TableSpec] | None = None, num_labels: int = 1, missing: Missing = "refuse",
        deduplicated: Mapping[str, Stage] | None = None, allow: Sequence[Shared] = (), rectifier: Rectifier = "prelu",
    ) -> None:  # fmt: skip
        super().__init__()
        self.input = FeatureInput(dense, missing, dict(deduplicated or {}), dict(history), tuple(allow))
        why = "its attention reads the candidate, a foreign feature (allow: [foreign_features])"
        require_stages(self.input.deduplicated, "attend" if "foreign_features" in allow else "pool", why)
        specs = chosen_tables(rows, width, dtype, tables, history)
        self.tables = FusedTables(specs, table_optimizer, seed=torch.initial_seed())
        self.attention = LocalActivation(len(history) * width, activation, rectifier)
        vectors = len(other_features(specs, history)) + 2 * len(history)
        self.top = Perceptron(dense_size(dense, missing) + vectors * width, top, num_labels)
        require_shareable(self.attention, self.input.deduplicated, allow)
        draw_weights(self, torch.initial_seed())

    initial_weight = staticmethod(first_weight)

    def require_columns(self, batch: FeatureBatch) -> None:
        """See `RequiresColumns`."""
        self.input.require_columns(self.tables, batch)

    def forward(self, batch: FeatureBatch) -> Tensor:
        """Logits (B, L), in fp32 at least.

        Raises:
            DataError: the batch lacks a feature, lengths of a history differ, or a dense number is missing.
        """
        dtype = next(self.top.parameters()).dtype
        read = self.input.histories(self.tables, batch, dtype)
        candidate = torch.cat(list(read.candidates), dim=1)
        interest = read.rows.expand(self.attention(read.rows.joined, read.rows.of_rows(candidate)))
        return logits_of(self.top(torch.cat([*read.rest, candidate, interest], dim=1)))

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The arithmetic of one forward pass."""
        activation = Op("linear", self.attention.flops(self.input.attended(inputs)[1]), "local activation")
        return [*self.input.ops(self.tables, inputs, self.top), activation]
