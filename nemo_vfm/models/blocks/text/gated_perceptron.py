"""Defines the perceptron of a language model's block, with or without a gate."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.parallel.layers.linear import Linear

Activation = Literal["squared_relu", "swiglu", "geglu", "gelu"]


class Perceptron(nn.Module):
    """Two linears with an activation between; with a gate (Shazeer 2020, arXiv 2002.05202), three.

    Args:
        width: of what comes in and goes out.
        hidden: between the linears.
        activation: of what is between; swiglu and geglu have a gate.
    """

    def __init__(self, width: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.gate = Linear(width, hidden, bias=False) if activation in GATES else None
        self.up = Linear(width, hidden, bias=False)
        self.down = Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        hidden = self.up(x)
        if self.gate is None:
            hidden = ACTIVATIONS[self.activation](hidden)
        else:
            hidden = GATES[self.activation](self.gate(x)) * hidden
        y: Tensor = self.down(hidden)
        return y


def _squared_relu(x: Tensor) -> Tensor:
    """So et al. 2021 (arXiv 2109.08668): max(0, x)^2."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"squared_relu": _squared_relu, "gelu": F.gelu}
GATES: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": partial(F.gelu, approximate="tanh")}
