"""Defines a transformer over histories, every item looks at every other, whose mean is a vector of the user.

Shape letters: B samples, F dense features, R rows, T items of the longest row, D width of a vector, H heads, E width of
a head, L labels.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.bounds import MAX_BLOCKS, MAX_FRAMES, MAX_HEADS, MAX_WIDTH, require_between
from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.models.blocks.layers import MLP
from nemo_vfm.models.recommenders.feature_input import FeatureInput, Missing, Shared, Stage
from nemo_vfm.models.recommenders.ranker import HistoryRanker
from nemo_vfm.models.recommenders.ranker_layers import DropoutPlaces, SampleDropout, row_layout
from nemo_vfm.models.recommenders.table_choice import RowDtype, Rows, chosen_tables
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer
from nemo_vfm.sparse.tables.table_spec import TableSpec


class HistoryTransformer(HistoryRanker):
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
    """

    def __init__(
        self, *, dense: int, history: Mapping[str, str], longest: int, depth: int, heads: int, mlp_hidden: int,
        top: Sequence[int], table_optimizer: RowOptimizer, width: int,
        rows: Rows | None = None, dtype: RowDtype = "fp32",
        tables: Mapping[str, TableSpec] | None = None, num_labels: int = 1, dropout: float = 0.0,
        missing: Missing = "refuse", deduplicated: Mapping[str, Stage] | None = None, allow: Sequence[Shared] = (),
    ) -> None:  # fmt: skip
        reads = FeatureInput(dense, missing, dict(deduplicated or {}), dict(history), tuple(allow))
        specs = chosen_tables(rows, width, dtype, tables, history)
        encoder = HistoryEncoder(
            width=width, depth=depth, heads=heads, hidden=mlp_hidden, longest=longest, dropout=dropout
        )
        super().__init__(reads, specs, table_optimizer, encoder, top, num_labels)


class HistoryEncoder(nn.Module):
    """Pre-norm transformer blocks (Vaswani et al., 1706.03762), with a learned vector for each age of an item.

    The last `longest` items of a history are kept. Dropout is after the attention and the perceptron of each block.
    """

    def __init__(self, *, width: int, depth: int, heads: int, hidden: int, longest: int, dropout: float) -> None:
        super().__init__()
        require_between(1, MAX_BLOCKS, depth=depth)
        require_between(1, MAX_HEADS, heads=heads)
        require_between(1, MAX_WIDTH, mlp_hidden=hidden)
        require_between(1, MAX_FRAMES, longest_history=longest)
        if width % heads:
            raise ValueError(f"width {width} is not divisible by {heads} heads; change either")
        self.width, self.hidden, self.longest = width, hidden, longest
        self.age = nn.Parameter(torch.empty(longest, width))
        self.blocks = nn.ModuleList(_HistoryBlock(width, heads, hidden, dropout, layer) for layer in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, history: Jagged, places: DropoutPlaces) -> Tensor:
        """The mean over each row's items, (R, D); zeros for a row without any."""
        layout = row_layout(history, self.longest)
        mask_RT = layout.mask_RT
        # How many items of its row come after each; 0 for the last one and for padding.
        place_T = torch.arange(layout.longest, device=mask_RT.device)
        age_RT = (layout.lengths_R[:, None] - 1 - place_T).clamp_(min=0)
        x_RTD = layout.to_padded(history.values_N) + self.age[age_RT]
        # Softmax over no key at all is not a number; a row without items sees its first padding instead.
        seen_R11T = mask_RT.index_fill(1, torch.zeros(1, dtype=torch.int64, device=mask_RT.device), True)[:, None, None]
        for block in self.blocks:
            x_RTD = block(x_RTD, seen_R11T, places)
        sum_RD = self.norm(x_RTD).masked_fill(~mask_RT[..., None], 0).sum(1)
        mean_RD: Tensor = sum_RD / layout.lengths_R.clamp(min=1)[:, None]
        return mean_RD

    def ops(self, rows: float, items: float) -> list[Op]:
        """For so many rows of together so many items, all of one length; padding is not counted."""
        depth, length = len(self.blocks), min(self.longest, items / max(1.0, rows))
        linear = 2.0 * rows * length * self.width * (4 * self.width + 2 * self.hidden)
        return [
            Op("linear", depth * linear, "history encoder"),
            Op("attention", depth * 4.0 * rows * length**2 * self.width, "history attention"),
        ]


class _HistoryBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, dropout: float, layer: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.mlp = MLP(width=width, hidden=hidden, bias=True)
        self.attention_dropout = SampleDropout(dropout, f"{layer}/attention")
        self.mlp_dropout = SampleDropout(dropout, f"{layer}/mlp")

    def forward(self, x_RTD: Tensor, seen_R11T: Tensor, places: DropoutPlaces) -> Tensor:
        q, k, v_RTHE = self.qkv(self.attention_norm(x_RTD)).unflatten(2, (3, self.heads, -1)).unbind(2)
        q_RHTE, k_RHTE, v_RHTE = (part.transpose(1, 2) for part in (q, k, v_RTHE))
        looked_RHTE = F.scaled_dot_product_attention(q_RHTE, k_RHTE, v_RHTE, attn_mask=seen_R11T)
        x_RTD = x_RTD + self.attention_dropout(self.out(looked_RHTE.transpose(1, 2).flatten(2)), places)
        update_RTD: Tensor = self.mlp_dropout(self.mlp(self.mlp_norm(x_RTD)), places)
        return x_RTD + update_RTD
