"""Defines HSTU's layers and a ranker on them.

Zhai et al., 2402.17152: pointwise attention by SiLU in place of softmax, biased by place and time. The authors' ranker
puts candidates into the sequence; here the candidate meets the user's vector, the result for the last item of a
history, behind the layers, so that a history is attended once for all samples that share it.
Shape letters: B samples, F dense features, R rows, T items of the longest row, D width of a vector, H heads, E width of
a head, L labels.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.bounds import MAX_BLOCKS, MAX_FRAMES, MAX_HEADS, require_between
from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.models.recommenders.feature_input import FeatureInput, Missing, Shared, Stage
from nemo_vfm.models.recommenders.ranker import HistoryRanker
from nemo_vfm.models.recommenders.ranker_layers import DropoutPlaces, SampleDropout, row_layout
from nemo_vfm.models.recommenders.table_choice import RowDtype, Rows, chosen_tables
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer
from nemo_vfm.sparse.tables.table_spec import TableSpec

#: Times apart fall into buckets whose bounds grow by e^0.301, about 1.35: 64 buckets reach 7 years in seconds.
_TIME_BUCKETS = 64
_LOG_OF_A_BUCKET = 0.301


class HSTU(HistoryRanker):
    """HSTU's layers read the history; a perceptron reads the last vector, the candidate, their product and all else.

    Vectors of several features of an item (such as item and category) are added. Dense numbers are read as they are.

    Args:
        dense: F, 0 or more.
        history: feature of the history -> feature of the candidate that has one table with it; the oldest item first.
        times: feature with the time of each item of the history, in seconds; None leaves time out.
        longest: items that are kept of a history, the last ones.
        depth: number of layers.
        heads: of attention; they divide `width`.
        top: widths of the top perceptron's layers with a ReLU; one that gives the logits comes behind them.
        table_optimizer: updates the tables' rows.
        width: D, of every table and of the layers.
        rows: for each feature but the histories, the rows of its own table, see `tables`; `auto` takes those that
            the data names.
        dtype: of the tables of `rows`.
        tables: in place of `rows`, tables one by one; those of histories give sequences.
        num_labels: L.
        dropout: before the last linear of each layer; a function of seed, step and sample.
        missing: whether missing dense numbers (NaN) are refused, or are zeros with their own indicator.
        deduplicated: group of the batch -> up to where it is computed on its unique rows; `attend` for the whole user's
            vector, if all features of the history and its times are in the group.
        allow: what samples of one row may share although the result then differs: dropout, foreign_features.
    """

    def __init__(
        self, *, dense: int, history: Mapping[str, str], longest: int, depth: int, heads: int,
        top: Sequence[int], table_optimizer: RowOptimizer, width: int, times: str | None = None,
        rows: Rows | None = None, dtype: RowDtype = "fp32",
        tables: Mapping[str, TableSpec] | None = None, num_labels: int = 1, dropout: float = 0.0,
        missing: Missing = "refuse", deduplicated: Mapping[str, Stage] | None = None, allow: Sequence[Shared] = (),
    ) -> None:  # fmt: skip
        reads = FeatureInput(dense, missing, dict(deduplicated or {}), dict(history), tuple(allow), times)
        specs = chosen_tables(rows, width, dtype, tables, history)
        encoder = HstuLayers(
            width=width, depth=depth, heads=heads, longest=longest, timed=times is not None, dropout=dropout
        )
        super().__init__(reads, specs, table_optimizer, encoder, top, num_labels)


class HstuLayers(nn.Module):
    """Layers whose item i looks at the items up to i; the vector of the last item is the result.

    U, V, Q, K = split(SiLU(f1(norm(X)))); A = SiLU(Q K^T + bias(place, time)) / n; Y = X + f2(norm(A V) * U) (equations
    1 to 3; the norm of the input, the residual and the division are those of the authors' code). n is `longest`, the
    items that are kept of a history, not the length in the batch, so that a row's result does not depend on other rows.
    Dropout is before each layer's last linear.
    """

    def __init__(self, *, width: int, depth: int, heads: int, longest: int, timed: bool, dropout: float) -> None:
        super().__init__()
        require_between(1, MAX_BLOCKS, depth=depth)
        require_between(1, MAX_HEADS, heads=heads)
        require_between(1, MAX_FRAMES, longest_history=longest)
        if width % heads:
            raise ValueError(f"width {width} is not divisible by {heads} heads; change either")
        self.width, self.longest, self.timed = width, longest, timed
        self.layers = nn.ModuleList(_Layer(width, heads, longest, timed, dropout, n) for n in range(depth))

    def forward(self, history: Jagged, places: DropoutPlaces, times: Jagged | None = None) -> Tensor:
        """The vector of each row's last item, (R, D); zeros for a row without items."""
        layout = row_layout(history, self.longest)
        x_RTD = layout.to_padded(history.values_N)
        place_T = torch.arange(layout.longest, device=x_RTD.device)
        apart_TT = place_T[:, None] - place_T
        seen_TT = apart_TT >= 0  # padding comes behind all items of its row, so it is masked, too
        buckets_RTT = None if times is None else time_buckets(layout.to_padded(times.values_N))
        for layer in self.layers:
            x_RTD = layer(x_RTD, apart_TT.clamp(min=0), buckets_RTT, seen_TT, places)
        last_R = (layout.lengths_R - 1).clamp(min=0)
        last_RD = x_RTD[torch.arange(last_R.shape[0], device=last_R.device), last_R]
        return last_RD.masked_fill((layout.lengths_R == 0)[:, None], 0)

    def ops(self, rows: float, items: float) -> list[Op]:
        """For so many rows of together so many items, all of one length; padding is not counted."""
        depth, length = len(self.layers), min(self.longest, items / max(1.0, rows))
        return [
            Op("linear", depth * 2.0 * rows * length * 5 * self.width**2, "hstu projections"),
            Op("attention", depth * 4.0 * rows * length**2 * self.width, "causal history attention", causal=True),
        ]


def time_buckets(times_RT: Tensor) -> Tensor:
    """The bucket of the time between each two items, floor(ln(max(1, |t_i - t_j|)) / 0.301): int64, (R, T, T).

    Times are in one unit, such as seconds; integers stay exact, since only differences become floats.
    """
    apart_RTT = (times_RT[:, :, None] - times_RT[:, None]).abs().clamp(min=1).float()
    return (apart_RTT.log() / _LOG_OF_A_BUCKET).long().clamp_(max=_TIME_BUCKETS - 1)


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, longest: int, timed: bool, dropout: float, layer: int) -> None:
        super().__init__()
        self.heads, self.longest = heads, longest
        self.input_norm, self.output_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.uvqk, self.out = Linear(width, 4 * width), Linear(width, width)
        self.place_bias = nn.Parameter(torch.empty(longest))
        self.time_bias = nn.Parameter(torch.empty(_TIME_BUCKETS)) if timed else None
        self.dropout = SampleDropout(dropout, f"{layer}")

    def forward(
        self, x_RTD: Tensor, apart_TT: Tensor, buckets_RTT: Tensor | None, seen_TT: Tensor, places: DropoutPlaces
    ) -> Tensor:
        projected = F.silu(self.uvqk(self.input_norm(x_RTD)))
        u, v, q, k_RTHE = projected.view(*x_RTD.shape[:2], 4, self.heads, x_RTD.shape[2] // self.heads).unbind(2)
        bias = self.place_bias[apart_TT]
        if self.time_bias is not None and buckets_RTT is not None:
            bias = bias + self.time_bias[buckets_RTT]
        scores_RHTT = q.transpose(1, 2) @ k_RTHE.permute(0, 2, 3, 1) + bias.unsqueeze(-3)
        weights_RHTT = F.silu(scores_RHTT).masked_fill(~seen_TT, 0) / self.longest
        looked_RTD = (weights_RHTT.to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2).flatten(2)
        gated_RTD = self.output_norm(looked_RTD) * u.flatten(2)
        update_RTD: Tensor = self.out(self.dropout(gated_RTD, places))
        return x_RTD + update_RTD
