"""Declares models that report their FLOPs and the shapes of a small input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable


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
