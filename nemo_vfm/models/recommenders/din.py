"""Defines DIN, which weighs each item of a history by what it says of the candidate.

Zhou et al., 1706.06978. Shape letters: B samples, F dense features, R rows, N items of all rows, D width of a vector,
L labels.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.models.blocks.layers import draw_weights
from nemo_vfm.models.recommenders.feature_input import (
    FeatureInput,
    Missing,
    Shared,
    Stage,
    dense_size,
    other_features,
    require_shareable,
    require_stages,
    sum_rows,
)
from nemo_vfm.models.recommenders.ranker import Ranker
from nemo_vfm.models.recommenders.ranker_layers import RankerMLP, first_weight, logits_of
from nemo_vfm.models.recommenders.table_choice import RowDtype, Rows, chosen_tables
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer
from nemo_vfm.sparse.tables.table_spec import TableSpec

Rectifier = Literal["prelu", "dice"]


class DIN(Ranker):
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
        self.top = RankerMLP(dense_size(dense, missing) + vectors * width, top, num_labels)
        require_shareable(self.attention, self.input.deduplicated, allow)
        draw_weights(self, first_weight, torch.initial_seed())

    def forward(self, batch: FeatureBatch) -> Tensor:
        """Logits (B, L), in fp32 at least."""
        dtype = next(self.top.parameters()).dtype
        read = self.input.histories(self.tables, batch, dtype)
        candidate = torch.cat(list(read.candidates), dim=1)
        vectors = read.rows.vectors  # of the features of an item, one behind the other
        joined = Jagged(torch.cat([one.values_N for one in vectors], dim=1), vectors[0].lengths_B)
        interest = read.rows.expand(self.attention(joined, read.rows.of_rows(candidate)))
        return logits_of(self.top(torch.cat([*read.rest, candidate, interest], dim=1)))

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        activation = Op("linear", self.attention.flops(self.input.attention_sizes(inputs)[1]), "local activation")
        return [*self.input.ops(self.tables, inputs, self.top), activation]


class LocalActivation(nn.Module):
    """v(A) = sum_j a(e_j, v_A) e_j, equation 3, with weights that are not normalised.

    a is a perceptron over [e, v, e - v, e * v]; the items stay packed, without padding. Between its layers is PReLU, or
    Dice (section 5.2): p s + (1 - p) slope s with p = sigmoid((s - E[s]) / sqrt(Var[s] + 1e-8)). E and Var are of all
    items of the batch in training, and running averages in evaluation and where a batch has fewer than two items.
    """

    def __init__(self, width: int, hidden: Sequence[int], rectifier: Rectifier = "prelu") -> None:
        super().__init__()
        if rectifier not in get_args(Rectifier):
            raise ValueError(f"rectifier {rectifier!r}: use {' or '.join(get_args(Rectifier))}")
        self.sizes = [4 * width, *hidden, 1]
        self.layers = nn.ModuleList(Linear(a, b) for a, b in pairwise(self.sizes))
        self.slopes = nn.ParameterList(torch.empty(size) for size in hidden)
        dice = hidden if rectifier == "dice" else ()
        self.norms = nn.ModuleList(nn.BatchNorm1d(size, eps=1e-8, affine=False) for size in dice)

    def forward(self, history: Jagged, candidate_RD: Tensor) -> Tensor:
        """The weighted sum of each row's items, (R, D); zeros for a row without items."""
        items_ND = history.values_N
        other_ND = torch.repeat_interleave(candidate_RD, history.lengths_B, dim=0, output_size=items_ND.shape[0])
        x = torch.cat([items_ND, other_ND, items_ND - other_ND, items_ND * other_ND], dim=1)
        if self.norms and self.training and ranks.count() > 1:
            raise UserError("Dice needs statistics of the whole batch, and each rank has a part; use prelu or one rank")
        measures = self.training and len(x) > 1
        for place, layer in enumerate(self.layers[:-1]):
            x = layer(x)
            slope = self.slopes[place].to(x.dtype)
            if not self.norms:
                x = F.prelu(x, slope)
                continue
            norm = self.norms[place]
            assert isinstance(norm, nn.BatchNorm1d)
            p = F.batch_norm(x, norm.running_mean, norm.running_var, training=measures, eps=norm.eps).sigmoid()
            x = x * (p + (1 - p) * slope)
        weights_N1 = self.layers[-1](x)
        return sum_rows(items_ND * weights_N1.to(items_ND.dtype), history.lengths_B)

    def flops(self, items: float) -> float:
        return 2.0 * items * sum(a * b for a, b in pairwise(self.sizes))
