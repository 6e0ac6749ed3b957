"""Defines DIN's local activation: how much each item of a history says of a candidate, and the weighted sum.

Zhou et al., 1706.06978. Shape letters: R rows, N items of all rows, D width.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.models.recommenders.feature_vectors import sum_rows
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.sparse.jagged import Jagged

Rectifier = Literal["prelu", "dice"]


class LocalActivation(nn.Module):
    """v(A) = sum_j a(e_j, v_A) e_j, equation 3, with weights that are not normalised.

    a is a perceptron over [e, v, e - v, e * v]; the items stay packed, without padding. Between its layers is PReLU, or
    Dice (section 5.2): p s + (1 - p) slope s with p = sigmoid((s - E[s]) / sqrt(Var[s] + 1e-8)). E and Var are of all
    items of the batch in training, and running averages in evaluation and where a batch has fewer than two items.

    Args:
        width: D.
        hidden: widths of the inner layers.
        rectifier: prelu or dice.

    Raises:
        ValueError: the rectifier is unknown.
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
        """The weighted sum of each row's items, (R, D); zeros for a row without items.

        Raises:
            UserError: Dice is trained on several ranks, each of which would have statistics of its own.
        """
        items_ND = history.values_N
        other_ND = torch.repeat_interleave(candidate_RD, history.lengths_B, dim=0, output_size=items_ND.shape[0])
        x = torch.cat([items_ND, other_ND, items_ND - other_ND, items_ND * other_ND], dim=1)
        for place, layer in enumerate(self.layers[:-1]):
            x = self._rectified(layer(x), place)
        weights_N1 = self.layers[-1](x)
        return sum_rows(items_ND * weights_N1.to(items_ND.dtype), history.lengths_B)

    def _rectified(self, x: Tensor, place: int) -> Tensor:
        slope = self.slopes[place].to(x.dtype)
        if not self.norms:
            return F.prelu(x, slope)
        if self.training and ranks.count() > 1:
            raise UserError("Dice needs statistics of the whole batch, and each rank has a part; use prelu or one rank")
        norm = self.norms[place]
        assert isinstance(norm, nn.BatchNorm1d)
        measures = self.training and len(x) > 1
        p = F.batch_norm(x, norm.running_mean, norm.running_var, training=measures, eps=norm.eps).sigmoid()
        rectified: Tensor = x * (p + (1 - p) * slope)
        return rectified

    def flops(self, items: float) -> float:
        """Of its products, forward, on so many items."""
        return 2.0 * items * sum(a * b for a, b in pairwise(self.sizes))
