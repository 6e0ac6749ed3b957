"""Defines DLRM, which ranks by dot products between the vectors of features.

Naumov et al., 1906.00091. Shape letters: B samples, F dense features, D width of a vector, V vectors, P pairs of them,
L labels.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.models.blocks.layers import draw_weights
from nemo_vfm.models.recommenders.feature_input import (
    FeatureInput,
    Missing,
    Stage,
    dense_size,
    features_of,
    require_bottom,
    require_stages,
)
from nemo_vfm.models.recommenders.ranker import Ranker
from nemo_vfm.models.recommenders.ranker_layers import RankerMLP, first_weight, logits_of
from nemo_vfm.models.recommenders.table_choice import RowDtype, Rows, chosen_tables
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer
from nemo_vfm.sparse.tables.table_spec import TableSpec


class DLRM(Ranker):
    """Bottom perceptron over dense numbers, embedding tables, dot products of all pairs, top perceptron.

    x = bottom(dense); z = (x_i . x_j for i > j) of x and the vectors of all features; logits = top([x, z]).

    Args:
        dense: F; 0 leaves the bottom perceptron and its vector out.
        bottom: widths of the bottom perceptron's layers, each with a ReLU; the last is `width`. Empty where F is 0.
        top: widths of the top perceptron's layers with a ReLU; one that gives the logits comes behind them.
        table_optimizer: updates the tables' rows.
        width: D, of every table.
        rows: for each feature, the rows of its own table, see `tables`; `auto` takes those that the data names.
        dtype: of the tables of `rows`.
        tables: in place of `rows`, tables one by one; features may share one.
        num_labels: L.
        self_interaction: whether each vector's product with itself counts, too.
        missing: whether missing dense numbers (NaN) are refused, or are zeros with their own indicator.
        deduplicated: group of the batch -> lookup or pool: what is computed on its unique rows. A table that pools does
            both at once, so they are the same here unless a table gives sequences. Groups not named are expanded first.
    """

    def __init__(
        self, *, dense: int, bottom: Sequence[int], top: Sequence[int], table_optimizer: RowOptimizer, width: int,
        rows: Rows | None = None, dtype: RowDtype = "fp32", tables: Mapping[str, TableSpec] | None = None,
        num_labels: int = 1, self_interaction: bool = False, missing: Missing = "refuse",
        deduplicated: Mapping[str, Stage] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        require_bottom(bottom, dense, width)
        self.self_interaction = self_interaction
        self.input = FeatureInput(dense, missing, dict(deduplicated or {}))
        require_stages(self.input.deduplicated, "pool", "DLRM has no attention")
        specs = chosen_tables(rows, width, dtype, tables)
        num_vectors = (dense > 0) + len(features_of(specs.values()))
        self.tables = FusedTables(specs, table_optimizer, seed=torch.initial_seed())
        self.bottom = RankerMLP(dense_size(dense, missing), bottom) if dense else None
        self.num_pairs = num_vectors * (num_vectors + (1 if self_interaction else -1)) // 2
        self.top = RankerMLP((width if dense else 0) + self.num_pairs, top, num_labels)
        draw_weights(self, first_weight, torch.initial_seed())

    def forward(self, batch: FeatureBatch) -> Tensor:
        """Logits (B, L), in fp32 at least."""
        dtype = next(self.top.parameters()).dtype
        dense_BF = self.input.dense_numbers(batch, dtype)
        bottom = [self.bottom(dense_BF)] if self.bottom else []
        vectors = [*(x_BD.to(dtype) for x_BD in bottom), *self.input.bags(self.tables, batch, dtype)]
        pairs_BP = dot_interaction(torch.stack(vectors, dim=1), self.self_interaction)
        return logits_of(self.top(torch.cat([*bottom, pairs_BP], dim=1)))

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The arithmetic of one forward pass; all pairs are counted, as the product computes them."""
        samples = inputs["dense_BF"][0]
        specs = self.tables.tables.values()
        vectors, width = (self.bottom is not None) + len(features_of(specs)), next(iter(specs)).width
        return [
            *self.input.ops(self.tables, inputs, *([self.bottom] if self.bottom else []), self.top),
            Op("attention", 2.0 * samples * vectors**2 * width, "dot interaction"),
        ]


def dot_interaction(x_BVD: Tensor, self_interaction: bool) -> Tensor:
    """Z = X X^T below the diagonal, row by row: (B, P) (Naumov et al., 1906.00091, section 2.1.3)."""
    vectors = x_BVD.shape[1]
    row, column = torch.tril_indices(vectors, vectors, 0 if self_interaction else -1, device=x_BVD.device)
    return torch.bmm(x_BVD, x_BVD.transpose(1, 2)).flatten(1).index_select(1, row * vectors + column)
