"""Declares what a model may offer: its FLOPs, the shapes of a small input, and blocks that a sampler may leave out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Op:
    """One piece of arithmetic of a forward pass."""

    #: linear (weights times activations), attention (activations times activations) or lookup (rows of embedding
    #: tables, with bytes in place of FLOPs).
    kind: Literal["linear", "attention", "lookup"]
    flops: float  #: multiply and add counted as two, for the whole batch, forward only
    name: str  #: which part of the model
    causal: bool = False  #: attention of which the later half of the keys is masked, although `flops` has it
    bytes: float = 0.0  #: of memory that a lookup reads; FLOPs of the others say enough


@runtime_checkable
class ReportsFlops(Protocol):
    """A model that says what it costs."""

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The arithmetic of one forward pass on inputs of these shapes (`ModelInputs.shapes`)."""
        ...


@runtime_checkable
class HasDummyInputs(Protocol):
    """A model that can be tried on batches that are made up: by `nemo-vfm parity` and `nemo-vfm diverge`."""

    def small_inputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of one small sample as a batch has it: `latents_BCTHW` and `text_BLD`, `video_BCTHW`, `tokens_BS`.

        A model of tokens also has `vocab`, how many there are.
        """
        ...


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
