"""Counts what quantisation loses of a linear's operands in one step, and finds their largest channels."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Fp8Tensor

#: Larger elements saturate; smaller ones round to the format's maximum.
_LIMIT = {E4M3: 464.0, E5M2: 61440.0}


@dataclass(frozen=True, slots=True)
class OperandSummary:
    """One operand of a linear in one step."""

    amax: float  #: the largest magnitude
    #: that of the largest channel over that of the median channel; 0 where a channel is zero in the middle
    outlier: float
    channel: int  #: the number of the largest
    saturated: float  #: values beyond the format's range
    flushed: float  #: values other than 0 that became 0
    values: float  #: those other than 0

    def merge(self, other: "OperandSummary") -> "OperandSummary":
        """With what another rank saw of it."""
        larger = max(self, other, key=lambda one: one.outlier)
        return OperandSummary(
            max(self.amax, other.amax), larger.outlier, larger.channel, self.saturated + other.saturated,
            self.flushed + other.flushed, self.values + other.values,
        )  # fmt: skip

    def share(self, count: float) -> float:
        """Of the values."""
        return count / self.values if self.values else 0.0


class OperandStats:
    """The operands of one linear, over the micro-batches of a step."""

    def __init__(self) -> None:
        self.channel_amax: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}  # saturated, flushed, other than 0

    @torch.no_grad()
    def note(self, role: str, x: Tensor, quantised: Fp8Tensor) -> None:
        """Add a matrix of one channel a column, and what became of it."""
        sizes = x.detach().abs().float()
        flushed = ((sizes > 0) & (quantised.elements.float() == 0)).sum()
        # A scale that follows the numbers themselves lets none saturate; one for the tensor may be of the past.
        saturated = torch.zeros((), dtype=torch.int64, device=sizes.device)
        if not quantised.scale.dim():
            saturated = (sizes > quantised.scale * _LIMIT[quantised.elements.dtype]).sum()
        counts = torch.stack([saturated, flushed, (sizes > 0).sum()]).float()
        channels = sizes.amax(0)
        if role in self.counts:
            channels, counts = torch.maximum(channels, self.channel_amax[role]), counts + self.counts[role]
        self.channel_amax[role], self.counts[role] = channels, counts

    def summaries(self) -> Mapping[str, OperandSummary]:
        """By role; an operand that no product used is left out."""
        found = {}
        for role, channels in self.channel_amax.items():
            largest, place = channels.max(0)
            middle = float(channels.median())
            outlier = float(largest) / middle if middle > 0 else 0.0
            saturated, flushed, values = self.counts[role].tolist()
            found[role] = OperandSummary(float(largest), outlier, int(place), saturated, flushed, values)
        return found
