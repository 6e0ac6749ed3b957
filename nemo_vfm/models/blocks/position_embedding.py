"""Computes one vector for each place of a token grid, to be added to the tokens.

Rotary positions tell a token how far away the others are, not where it is itself. A model that trains briefly on few
tokens learns the position of things much sooner with absolute positions.
Shape letters: S tokens, F features, D width.
"""

import math

import torch
from torch import Tensor, nn

from nemo_vfm.models.blocks.rope import Grid
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.layers.token_layout import split_tokens


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

    Args:
        width: D.
        most: frames, rows and columns of tokens that there are vectors for.

    Raises:
        ValueError: `most` is not three sizes.
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
        """(S, D), this rank's tokens of one video after another, in each the time slowest and the width fastest.

        Raises:
            ValueError: a grid is larger than the tables.
        """
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
