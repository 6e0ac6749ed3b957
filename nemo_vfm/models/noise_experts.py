"""Combines a network for high noise levels and one for low noise levels, as in Wan 2.2 A14B."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nemo_vfm.models.dit import DiT

#: Levels arrive in fp32, where 0.9 is slightly less than 0.9.
_ROUNDING = 1e-6


class NoiseExperts(nn.Module):
    """Chooses between two networks by noise level. For sampling only: train each network by itself.

    Args:
        high: the network for noise levels from the boundary up.
        low: the network for noise levels below the boundary.
        boundary: the noise level where they meet, as the objective expresses it. Wan 2.2 A14B has 0.875 for
            text-to-video and 0.9 for image-to-video.
    """

    def __init__(self, *, high: DiT, low: DiT, boundary: float) -> None:
        super().__init__()
        if not 0 <= boundary <= 1:
            raise ValueError(f"boundary must lie in 0..1, got {boundary}")
        self.high, self.low, self.boundary = high, low, boundary
        self.one_on_device = False  #: whether the network that is not asked waits in host memory

    def networks(self) -> Sequence[nn.Module]:
        """Both, which are cut over devices one by one."""
        return self.high, self.low

    def initial_weight(self, name: str, shape: torch.Size, seed: int) -> Tensor:
        which, _, own = name.partition(".")
        return (self.high if which == "high" else self.low).initial_weight(own, shape, seed)

    def forward(self, *, noise_B: Tensor, **inputs: Tensor) -> Tensor:
        """The output of the network for these noise levels."""
        is_high = noise_B >= self.boundary - _ROUNDING
        if bool(is_high.any()) != bool(is_high.all()):
            raise ValueError(f"a batch has noise levels on both sides of the boundary {self.boundary}; call it "
                             f"once for each side")  # fmt: skip
        expert, other = (self.high, self.low) if bool(is_high.all()) else (self.low, self.high)
        if self.one_on_device:
            other.to("cpu")
            expert.to(noise_B.device)
        output: Tensor = expert(noise_B=noise_B, **inputs)
        return output
