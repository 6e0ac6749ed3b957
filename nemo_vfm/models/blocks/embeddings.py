"""Embeds patches, places, noise levels and text for a diffusion transformer.

Rotary positions tell a token how far away the others are, not where it is itself. A model that trains briefly on few
tokens learns the position of things much sooner with absolute positions.
Shape letters: B batch, S video tokens, L text tokens, P numbers of a patch, F or K features, D width of a token.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.models.blocks.layers import RMSNorm, rms_normalised
from nemo_vfm.models.blocks.video_tokens import Grid, Patch
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.layers.token_layout import split_tokens


class PatchEmbedding(nn.Module):
    """Projects each patch to one token.

    A reshape and a linear rather than a convolution with stride: the same arithmetic, and one matrix product
    that tensor parallel and low precision treat as any other.
    """

    def __init__(self, *, in_channels: int, width: int, patch: Patch, bias: bool = True) -> None:
        super().__init__()
        self.proj = Linear(in_channels * patch[0] * patch[1] * patch[2], width, bias=bias)

    def forward(self, patches_BSP: Tensor) -> Tensor:
        """Tokens (B, S, D)."""
        tokens: Tensor = self.proj(patches_BSP)
        return tokens


class AbsolutePositions(nn.Module):
    """Fixed waves over the place in the video, from 0 to 1 along each axis, through a learned linear.

    Each axis has `width // 6` frequencies, evenly spaced up to two periods over the whole axis, as sine and cosine.
    The same share of a video gets the same vector at any size.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.num_frequencies = max(width // 6, 1)
        self.proj = Linear(6 * self.num_frequencies, width, bias=False)

    def forward(self, *grids: Grid) -> Tensor:
        """(S, D), this rank's tokens of one video after another, in each the time slowest and the width fastest."""
        features_SF = torch.cat([self.features(grid) for grid in grids])
        positions: Tensor = self.proj(split_tokens(features_SF, 0))
        return positions

    def features(self, grid: Grid) -> Tensor:
        """(S, F)."""
        order = torch.arange(1, self.num_frequencies + 1, device=self.proj.weight.device)
        periods = order * (2.0 / self.num_frequencies)
        waves = []
        for axis, size in enumerate(grid):
            place = (torch.arange(size, device=order.device) + 0.5) / size
            angles = 2 * math.pi * place[:, None] * periods
            wave = torch.cat([angles.sin(), angles.cos()], dim=1)
            waves.append(wave.reshape([size if i == axis else 1 for i in range(3)] + [-1]).expand(*grid, -1))
        return torch.cat(waves, dim=-1).flatten(0, 2)


class LearnedPositions(nn.Module):
    """A learned vector for each frame, row and column; their sum at unit scale, to be added in every block (Cosmos).

    They begin small and not at zero, where dividing by their size would have no gradient worth the name.
    """

    def __init__(self, *, width: int, most: Grid) -> None:
        super().__init__()
        if len(most) != 3 or min(most) < 1:
            raise ValueError(
                f"learned_positions must be three sizes of at least 1 (frames, rows, columns of tokens), got {most}"
            )
        self.most: Grid = (most[0], most[1], most[2])  # a recipe gives a list
        self.frames, self.rows, self.columns = (nn.Parameter(torch.zeros(size, width)) for size in most)

    def forward(self, *grids: Grid) -> Tensor:
        """(S, D), this rank's tokens of one video after another, in each the time slowest and the width fastest."""
        places_S3 = split_tokens(torch.cat([self._places(grid) for grid in grids]), 0)
        frame, row, column = places_S3.unbind(1)
        sum_SD = self.frames[frame] + self.rows[row] + self.columns[column]
        # Cosmos adds its epsilon to the root, not below it: small vectors differ by 1e-5.
        size_S1 = torch.linalg.vector_norm(sum_SD, dim=1, keepdim=True, dtype=torch.float32)
        positions: Tensor = (sum_SD / (size_S1 / sum_SD.shape[1] ** 0.5 + 1e-6)).to(sum_SD.dtype)
        return positions

    def _places(self, grid: Grid) -> Tensor:
        """(S, 3): frame, row and column of each token."""
        if any(size > most for size, most in zip(grid, self.most, strict=True)):
            raise ValueError(
                f"a video of {grid} tokens (frames, rows, columns) is larger than the model's learned positions "
                f"{self.most}; use a smaller one, or raise learned_positions"
            )
        _, rows, columns = grid
        place_S = torch.arange(math.prod(grid), device=self.frames.device)
        return torch.stack([place_S // (rows * columns), place_S // columns % rows, place_S % columns], 1)


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


class TextProjection(nn.Module):
    """Projects text tokens to the width of cross-attention by a linear and a GELU, as in Cosmos 2.5."""

    def __init__(self, text_dim: int, width: int) -> None:
        super().__init__()
        self.proj = Linear(text_dim, width)

    def forward(self, text_BLD: Tensor) -> Tensor:
        """(B, L, width)."""
        return F.gelu(self.proj(text_BLD))


def visible(text_BLD: Tensor, text_mask_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Text at unit scale with hidden tokens zeroed, and the mask that attention uses.

    A sample without a real token sees all its tokens, which are zero and so contribute zero values: a softmax over
    nothing is 0 / 0 in some attention kernels and zero in others.
    """
    text = rms_normalised(text_BLD) * text_mask_BL.unsqueeze(2).to(text_BLD.dtype)
    seen_BL = text_mask_BL | ~text_mask_BL.any(dim=1, keepdim=True)
    return text, seen_BL[:, None, None, :]


def as_given(text_BLD: Tensor, text_mask_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Text with hidden tokens zeroed, which attention sees like all others: so Cosmos was trained."""
    text = text_BLD * text_mask_BL.unsqueeze(2).to(text_BLD.dtype)
    return text, text_mask_BL.new_ones(text_mask_BL.shape)[:, None, None, :]


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
    """
    u_BS = uncertainty.unsqueeze(1) if uncertainty.ndim == 1 else uncertainty
    volume = out_BSP.shape[2] // channels
    return torch.cat([out_BSP, u_BS.unsqueeze(2).expand(*out_BSP.shape[:2], volume)], dim=2)
