# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Moves text encoder, network and codec to the device one after another, so that they need not fit together."""

from dataclasses import dataclass

import torch
from torch import nn

from nemo_vfm.core.types.encoders import Offloadable
from nemo_vfm.parallel.engine.sampling_ranks import SamplingRanks


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What lies where while videos are drawn.

    Args:
        model: the network; where ranks share its weights it stays where it is.
        device: where it computes.
        ranks: who draws together.
        offloads: whether anything moves at all.
    """

    model: nn.Module
    device: torch.device
    ranks: SamplingRanks
    offloads: bool

    def release(self, *parts: object) -> None:
        """Let codecs and encoders leave the device; others stay."""
        for part in parts if self.offloads else ():
            if isinstance(part, Offloadable):
                part.offload()

    def take_model(self) -> None:
        """Bring the network to the device; of several networks each comes when it is called."""
        if self._moves() and not getattr(self.model, "one_on_device", False):
            self.model.to(self.device)

    def release_model(self) -> None:
        """Let it leave."""
        if self._moves():
            self.model.to("cpu")

    def _moves(self) -> bool:
        return self.offloads and self.ranks.has_plain_weights
