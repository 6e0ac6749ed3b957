"""Estimates the share of a GPU's peak that a matrix product reaches. No other file makes assumptions about kernels.

`Kernels` is a protocol, so that a model measured on the GPU at hand can replace `Published`.
"""

from dataclasses import dataclass
from typing import Protocol


class Kernels(Protocol):
    """What a planner asks about the arithmetic of a GPU."""

    def linear(self, rows: float, inputs: float, outputs: float) -> float:
        """The share of the peak of a product of (rows, inputs) and (inputs, outputs), forward and backward."""
        ...

    def linear_fp8(self, rows: float, inputs: float, outputs: float) -> float:
        """The same of a product in FP8, as a share of the FP8 peak; casts apart."""
        ...

    def attention(self, length: float) -> float:
        """The share of the peak of attention to so many keys."""
        ...

    def moved(self, numbers: float) -> float:
        """Times that so many numbers between linears pass the GPU's memory in a forward pass, over their bytes."""
        ...

    def launched_s(self) -> float:
        """The least that a block's forward pass takes, however small it is."""
        ...


@dataclass(frozen=True, slots=True)
class Published:
    """Constants that give published rows of trainings on H100 (the table: docs/how-to/training/planning.md).

    Those of FP8 are assumed, not fitted: docs/reference/performance.md has what they give beside published speed-ups.

    A product's share falls with its smallest side: `most` x side / (side + half). Attention likewise with its length.

    Args:
        most_linear: share of the peak that large products reach through a training.
        half_linear: the side at which a product reaches half of that.
        most_fp8: share of the FP8 peak that large products in FP8 reach.
        half_fp8: the side at which such a product reaches half of that: twice that of bf16, since its loads and its
            start take as long while its products take half.
        most_attention: the same of attention.
        half_attention: the number of keys at which attention reaches half of that.
        passes: times that what goes into and out of each linear is read and written by norms, modulations,
            activations and residuals, forward; backward is taken for twice as many.
        launch_s: seconds that starting the kernels of a block takes, at least.
    """

    most_linear: float = 0.68
    half_linear: float = 128.0
    most_fp8: float = 0.6
    half_fp8: float = 256.0
    most_attention: float = 0.5
    half_attention: float = 512.0
    passes: float = 1.5
    launch_s: float = 3e-4

    def linear(self, rows: float, inputs: float, outputs: float) -> float:
        """See `Kernels`."""
        side = min(rows, inputs, outputs)
        return self.most_linear * side / (side + self.half_linear)

    def linear_fp8(self, rows: float, inputs: float, outputs: float) -> float:
        """See `Kernels`."""
        side = min(rows, inputs, outputs)
        return self.most_fp8 * side / (side + self.half_fp8)

    def attention(self, length: float) -> float:
        """See `Kernels`."""
        return self.most_attention * length / (length + self.half_attention)

    def moved(self, numbers: float) -> float:
        """See `Kernels`."""
        return self.passes * numbers

    def launched_s(self) -> float:
        """See `Kernels`."""
        return self.launch_s
