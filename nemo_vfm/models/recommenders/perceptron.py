"""Defines the perceptron of recommenders: linear layers with a ReLU after each, or after all but the last."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from nemo_vfm.core.bounds import MOST_WIDTH, require_between
from nemo_vfm.parallel.layers.linear import Linear


class Perceptron(nn.Module):
    """Layers of these widths.

    Args:
        inputs: numbers that enter.
        widths: of each layer.
        outputs: of a last linear layer without ReLU; None where there is no such layer.
    """

    def __init__(self, inputs: int, widths: Sequence[int], outputs: int | None = None) -> None:
        super().__init__()
        self.sizes = [inputs, *widths, *([] if outputs is None else [outputs])]
        for size in self.sizes:
            require_between(1, MOST_WIDTH, width=size)
        self.layers = nn.ModuleList(Linear(a, b) for a, b in pairwise(self.sizes))
        self.num_relu = len(widths)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) -> (B, the last width)."""
        for place, layer in enumerate(self.layers):
            x = layer(x)
            if place < self.num_relu:
                x = x.relu()
        return x

    def flops(self, rows: float) -> float:
        """Of its products, forward, on so many rows."""
        return 2.0 * rows * sum(a * b for a, b in pairwise(self.sizes))


def logits_of(x: Tensor) -> Tensor:
    """In fp32, but for fp64, which stays."""
    return x if x.dtype == torch.float64 else x.float()
