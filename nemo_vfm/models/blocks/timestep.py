"""Embeds the noise level of each sample as a conditioning vector.

Shape letters: B batch, D width.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.models.blocks.norm import RMSNorm
from nemo_vfm.parallel.layers.linear import Linear


def sinusoids(noise_B: Tensor, dim: int, scale: float = 1000.0, max_period: float = 10_000.0) -> Tensor:
    """Cosines and sines of `scale * noise_B` at `dim / 2` frequencies from 1 down to 1 / max_period, (B, dim), fp32.

    Both families of objectives give numbers of order one (flow matching sigma in [0, 1], EDM ln(sigma) / 4); a
    factor of 1000 spreads them over the frequencies, as the integer timesteps of Ho et al. 2020 do. Cosmos has none.
    """
    half = dim // 2
    order = torch.arange(half, device=noise_B.device).float()
    angles = scale * noise_B.float()[:, None] * torch.exp(order * (-math.log(max_period) / half))
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class NoiseEmbedding(nn.Module):
    """Sinusoids of the noise level through a two-layer perceptron."""

    def __init__(self, *, width: int, num_frequencies: int = 128, scale: float = 1000.0) -> None:
        super().__init__()
        self.num_frequencies, self.scale = num_frequencies, scale
        self.up = Linear(2 * num_frequencies, width)
        self.down = Linear(width, width)

    def forward(self, noise_B: Tensor) -> Tensor:
        """(B, D)."""
        vector: Tensor = self.down(F.silu(self.up(sinusoids(noise_B, 2 * self.num_frequencies, self.scale))))
        return vector


class SharedNoiseEmbedding(nn.Module):
    """Sinusoids of the model's width, normalised, as the vector e; and a = W2 SiLU(W1 sinusoids), 3 D wide.

    Blocks with modulations of low rank read e and share a. W2 begins at zero.
    """

    def __init__(self, *, width: int, scale: float = 1000.0) -> None:
        super().__init__()
        self.width, self.scale = width, scale
        self.norm = RMSNorm(dim=width)
        self.hidden = Linear(width, width, bias=False)
        self.shared = Linear(width, 3 * width, bias=False)

    def forward(self, noise_B: Tensor) -> tuple[Tensor, Tensor]:
        """e (B, D) and a (B, 3 D)."""
        waves_BD = sinusoids(noise_B, self.width, self.scale)
        shared: Tensor = self.shared(F.silu(self.hidden(waves_BD)))
        vector: Tensor = self.norm(waves_BD)
        return vector, shared
