"""Defines DCNv2 over embedding tables, whose cross layers multiply features: their degree grows by one a layer.

Wang et al., 2008.13535, with the bottom perceptron of DLRM in front and the perceptron behind the cross layers, as
MLPerf Training has it. Shape letters: B samples, F dense features, X numbers of a sample, D width of a vector, L
labels.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nemo_vfm.core.bounds import MAX_BLOCKS, MAX_WIDTH, require_between
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
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer
from nemo_vfm.sparse.tables.table_spec import TableSpec


class DCNv2(Ranker):
    """Bottom perceptron over dense numbers, embedding tables, cross layers over all vectors, top perceptron.

    x_0 = [bottom(dense), vectors of all features]; logits = top(cross(x_0)).

    Args:
        dense: F; 0 leaves the bottom perceptron and its vector out.
        bottom: widths of the bottom perceptron's layers, each with a ReLU; the last is `width`. Empty where F is 0.
        top: widths of the top perceptron's layers with a ReLU; one that gives the logits comes behind them.
        cross_layers: how many.
        cross_rank: of each cross layer's matrix.
        table_optimizer: updates the tables' rows.
        width: D, of every table.
        rows: for each feature, the rows of its own table, see `tables`; `auto` takes those that the data names.
        dtype: of the tables of `rows`.
        tables: in place of `rows`, tables one by one; features may share one.
        num_labels: L.
        missing: whether missing dense numbers (NaN) are refused, or are zeros with their own indicator.
        deduplicated: group of the batch -> lookup or pool: what is computed on its unique rows. A table that pools does
            both at once, so they are the same here unless a table gives sequences. Groups not named are expanded first.
    """

    def __init__(
        self, *, dense: int, bottom: Sequence[int], top: Sequence[int], cross_layers: int, cross_rank: int,
        table_optimizer: RowOptimizer, width: int, rows: Rows | None = None, dtype: RowDtype = "fp32",
        tables: Mapping[str, TableSpec] | None = None, num_labels: int = 1, missing: Missing = "refuse",
        deduplicated: Mapping[str, Stage] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        require_bottom(bottom, dense, width)
        self.input = FeatureInput(dense, missing, dict(deduplicated or {}))
        require_stages(self.input.deduplicated, "pool", "DCNv2 has no attention")
        specs = chosen_tables(rows, width, dtype, tables)
        num_vectors = (dense > 0) + len(features_of(specs.values()))
        self.tables = FusedTables(specs, table_optimizer, seed=torch.initial_seed())
        self.bottom = RankerMLP(dense_size(dense, missing), bottom) if dense else None
        self.cross = CrossLayers(width * num_vectors, cross_layers, cross_rank)
        self.top = RankerMLP(self.cross.size, top, num_labels)
        draw_weights(self, first_weight, torch.initial_seed())

    def forward(self, batch: FeatureBatch) -> Tensor:
        """Logits (B, L), in fp32 at least."""
        dtype = next(self.top.parameters()).dtype
        dense_BF = self.input.dense_numbers(batch, dtype)
        bottom = [self.bottom(dense_BF).to(dtype)] if self.bottom else []
        x_BX = torch.cat([*bottom, *self.input.bags(self.tables, batch, dtype)], dim=1)
        return logits_of(self.top(self.cross(x_BX)))

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        samples = inputs["dense_BF"][0]
        return [
            *self.input.ops(self.tables, inputs, *([self.bottom] if self.bottom else []), self.top),
            Op("linear", self.cross.flops(samples), "cross layers"),
        ]


class CrossLayers(nn.Module):
    """x_{l+1} = x_0 * (U_l (V_l x_l) + b_l) + x_l, with matrices of a low rank (section 4.2 there, without experts)."""

    def __init__(self, size: int, layers: int, rank: int) -> None:
        super().__init__()
        require_between(1, MAX_BLOCKS, cross_layers=layers)
        require_between(1, MAX_WIDTH, cross_rank=rank)
        self.size, self.rank = size, rank
        self.down = nn.ModuleList(Linear(size, rank, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(Linear(rank, size) for _ in range(layers))

    def forward(self, x_BX: Tensor) -> Tensor:
        """(B, X)."""
        first_BX = x_BX
        for down, up in zip(self.down, self.up, strict=True):
            x_BX = first_BX * up(down(x_BX)) + x_BX
        return x_BX

    def flops(self, rows: float) -> float:
        return 4.0 * rows * self.size * self.rank * len(self.down)
