"""Defines a block's position-wise perceptron: two linears with a GELU between."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.parallel.layers.linear import Linear

Gelu = Literal["tanh", "exact"]


class MLP(nn.Module):
    """The position-wise perceptron of a block; GELU in its tanh form, or exactly, some 1e-4 apart."""

    def __init__(self, *, width: int, hidden: int, gelu: Gelu = "tanh", bias: bool = False) -> None:
        super().__init__()
        self.approximate = "tanh" if gelu == "tanh" else "none"
        self.up = Linear(width, hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        y: Tensor = self.down(F.gelu(self.up(x), approximate=self.approximate))
        return y
