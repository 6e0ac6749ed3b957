# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines a block's position-wise perceptron: two linears with a GELU between."""

from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.parallel.engine.matmul_support import Linear


class MLP(nn.Module):
    """The position-wise perceptron of a block; GELU in its tanh form."""

    def __init__(self, *, width: int, hidden: int) -> None:
        super().__init__()
        self.up = Linear(width, hidden, bias=False)
        self.down = Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        y: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return y
