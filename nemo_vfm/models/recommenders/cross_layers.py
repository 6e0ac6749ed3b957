"""Defines the cross layers of DCNv2, whose products of features grow by one degree a layer.

Wang et al., 2008.13535. Shape letters: B samples, X numbers of a sample.
"""

from torch import Tensor, nn

from nemo_vfm.core.bounds import MOST_BLOCKS, MOST_WIDTH, require_between
from nemo_vfm.parallel.layers.linear import Linear


class CrossLayers(nn.Module):
    """x_{l+1} = x_0 * (U_l (V_l x_l) + b_l) + x_l, with matrices of a low rank (section 4.2 there, without experts).

    Args:
        size: X.
        layers: how many.
        rank: of each layer's matrix U V.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, size: int, layers: int, rank: int) -> None:
        super().__init__()
        require_between(1, MOST_BLOCKS, cross_layers=layers)
        require_between(1, MOST_WIDTH, cross_rank=rank)
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
        """Of its products, forward, on so many samples."""
        return 4.0 * rows * self.size * self.rank * len(self.down)
