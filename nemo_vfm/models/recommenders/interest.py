# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines DIN's local activation: how much each item of a history says of a candidate, and the weighted sum.

Zhou et al., 1706.06978. Shape letters: R rows, N items of all rows, D width.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.models.recommenders.feature_vectors import sum_rows
from nemo_vfm.parallel.engine.matmul_support import Linear
from nemo_vfm.sparse.jagged import Jagged


class LocalActivation(nn.Module):
    """v(A) = sum_j a(e_j, v_A) e_j, equation 3, with weights that are not normalised.

    a is a perceptron over [e, v, e - v, e * v] with PReLU between its layers; the items stay packed, without padding.

    Args:
        width: D.
        hidden: widths of the inner layers.
    """

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.sizes = [4 * width, *hidden, 1]
        self.layers = nn.ModuleList(Linear(a, b) for a, b in pairwise(self.sizes))
        self.slopes = nn.ParameterList(torch.empty(size) for size in hidden)

    def forward(self, history: Jagged, candidate_RD: Tensor) -> Tensor:
        """The weighted sum of each row's items, (R, D); zeros for a row without items."""
        items_ND = history.values_N
        other_ND = torch.repeat_interleave(candidate_RD, history.lengths_B, dim=0, output_size=len(items_ND))
        x = torch.cat([items_ND, other_ND, items_ND - other_ND, items_ND * other_ND], dim=1)
        for layer, slope in zip(self.layers, self.slopes, strict=False):
            x = layer(x)
            x = F.prelu(x, slope.to(x.dtype))
        weights_N1 = self.layers[-1](x)
        return sum_rows(items_ND * weights_N1.to(items_ND.dtype), history.lengths_B)

    def flops(self, items: float) -> float:
        """Of its products, forward, on so many items."""
        return 2.0 * items * sum(a * b for a, b in pairwise(self.sizes))
