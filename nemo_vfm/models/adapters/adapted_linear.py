"""Defines a linear layer with adapters; the linear's own parameters and their names do not change."""

from typing import Any

from torch import Tensor, nn

from nemo_vfm.models.adapters.low_rank import LowRank
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.plan.adapter_split import ADAPTERS, TensorSplit


class Adapters(nn.ModuleDict):
    """The adapters of one linear by name."""

    #: Set if every tensor rank has the linear's complete input, so that gradients here need no sum over tokens.
    whole_gradient = False

    def __init__(self) -> None:  # ModuleDict's signature has a type that get_type_hints cannot resolve
        super().__init__()

    def split(self, how: TensorSplit) -> None:
        """Keep this rank's shard of each adapter; see `ShardableAdapter`."""
        for adapter in self.values():
            assert isinstance(adapter, LowRank)
            adapter.split(how)

    def require_divisible(self, ranks: int) -> None:
        """See `ShardableAdapter`."""
        for adapter in self.values():
            assert isinstance(adapter, LowRank)
            adapter.require_divisible(ranks)


class AdaptedLinear(Linear):
    """A linear whose adapters modify its output.

    It overrides `__call__`, not `forward`, because tensor parallelism exchanges tensors in hooks around `forward`.
    """

    adapters: Adapters

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute W x + b and apply each adapter in turn."""
        (x,) = args
        output: Tensor = super().__call__(x, **kwargs)
        for adapter in self.adapters.values():
            output = adapter(x, output, self)
        return output


def adapters_of(linear: nn.Linear) -> Adapters:
    """Return a linear's adapters, making it an `AdaptedLinear` first."""
    if not isinstance(linear, AdaptedLinear):
        linear.__class__ = AdaptedLinear
        linear.add_module(ADAPTERS, Adapters())
    assert isinstance(linear, AdaptedLinear)
    return linear.adapters
