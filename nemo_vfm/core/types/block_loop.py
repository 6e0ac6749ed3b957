"""Declares how the blocks of a network are run, so that a sampler may leave some out."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn


class BlockLoop(Protocol):
    """Runs blocks one after another, or fewer of them."""

    def __call__(self, blocks: "Iterable[nn.Module]", x_BSD: "Tensor", context: Any) -> "Tensor":
        """Tokens after the blocks; each is called with tokens and the context."""
        ...


@runtime_checkable
class HasBlockLoop(Protocol):
    """A network that leaves the order of its blocks to a loop."""

    def use_block_loop(self, loop: BlockLoop | None) -> None:
        """From here on run blocks by this loop; None runs all, one after another."""
        ...
