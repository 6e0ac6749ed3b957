"""Predicts the model's uncertainty at a noise level, by which a loss may be weighted.

Shape letters: B batch, S tokens, P numbers of a patch, K features.
"""

import math

import torch
from torch import Tensor, nn

_GOLDEN = (math.sqrt(5) - 1) / 2


class NoiseUncertainty(nn.Module):
    """u(noise level): one learned weight for each of K waves of it, zero at first (Karras et al. 2024, EDM2, eq. 21).

    EDM2 draws frequencies from N(0, 1) and phases evenly; these are the quantiles of the same distributions, so that
    there is nothing to draw, to keep or to send. The sum is taken in fp32 whatever autocast says: u is a logarithm, and
    bf16 knows it to three digits.
    """

    def __init__(self, *, num_features: int = 128) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_features))

    def forward(self, noise: Tensor) -> Tensor:
        """The shape of `noise`, fp32."""
        return (self.features(noise) * self.weight.float()).sum(-1)

    def features(self, noise: Tensor) -> Tensor:
        """Cosines of unit mean square over all phases, K for each noise level, fp32."""
        order = torch.arange(len(self.weight), device=noise.device, dtype=torch.float32)
        frequencies = torch.special.ndtri((order + 0.5) / len(order))
        angles = noise.float().unsqueeze(-1) * frequencies + order * _GOLDEN % 1
        return math.sqrt(2) * torch.cos(2 * math.pi * angles)


def with_uncertainty(out_BSP: Tensor, uncertainty: Tensor, channels: int) -> Tensor:
    """Tokens whose patches have u as one more channel, the last.

    Each token carries it, rather than each sample once, so that a layout that splits tokens over ranks sums its
    gradient as it sums every other.

    Args:
        out_BSP: tokens that hold one patch each, the channel slowest.
        uncertainty: u of each sample, (B,), or of each token, (B, S).
        channels: of the patches.
    """
    u_BS = uncertainty.unsqueeze(1) if uncertainty.ndim == 1 else uncertainty
    volume = out_BSP.shape[2] // channels
    return torch.cat([out_BSP, u_BS.unsqueeze(2).expand(*out_BSP.shape[:2], volume)], dim=2)
