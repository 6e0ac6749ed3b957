"""Moves text encoder, network and codec between host and device memory, so that all three need not fit at once."""

from dataclasses import dataclass

import torch
from torch import nn

from nemo_vfm.core.types.encoders import Offloadable
from nemo_vfm.parallel.engine.inference_model import SamplingRanks


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Manages device memory during sampling.

    Args:
        model: the network; it is not moved if ranks share its weights.
        device: where the network computes.
        ranks: the ranks that sample together.
        offloads: whether anything is moved.
    """

    model: nn.Module
    device: torch.device
    ranks: SamplingRanks
    offloads: bool

    def offload(self, *parts: object) -> None:
        """Offload codecs and encoders that support it."""
        for part in parts if self.offloads else ():
            if isinstance(part, Offloadable):
                part.offload()

    def load_model(self) -> None:
        """Move the network to the device; one of several networks is moved when it is called."""
        if self._moves() and not getattr(self.model, "one_on_device", False):
            self.model.to(self.device)

    def offload_model(self) -> None:
        """Move the network to host memory."""
        if self._moves():
            self.model.to("cpu")

    def _moves(self) -> bool:
        return self.offloads and self.ranks.has_plain_weights
