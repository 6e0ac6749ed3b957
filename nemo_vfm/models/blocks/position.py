# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A token grid in, one vector a place out, to be added to the tokens.

Rotary positions tell a token how far the others are, not where it stands itself; a model that trains briefly on
few tokens learns what belongs where much sooner when it is told.
Shape letters: S tokens, F features, D width.
"""

import math

import torch
from torch import Tensor, nn

from nemo_vfm.models.blocks.rope import Grid
from nemo_vfm.parallel.layout import split_tokens
from nemo_vfm.parallel.products import Linear


class AbsolutePositions(nn.Module):
    """Fixed waves over the place in the video, from 0 to 1 along each axis, through a learned linear.

    Each axis has `width // 6` frequencies, evenly spaced up to two periods over the whole axis, as sine and cosine.
    The same share of a video gets the same vector at any size.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.num_frequencies = max(width // 6, 1)
        self.proj = Linear(6 * self.num_frequencies, width, bias=False)

    def forward(self, grid: Grid) -> Tensor:
        """(S, D), this rank's tokens, with time slowest and width fastest."""
        positions: Tensor = self.proj(split_tokens(self.features(grid), 0))
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
