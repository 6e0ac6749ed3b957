"""Draws random numbers by their place in a named stream, in any order, and ranks by Walker's alias method.

Shape letters: N places or draws, R ranks.
"""

import torch
from torch import Tensor

from nemo_vfm.sparse.tables.counter_hash import name_salt, row_keys


class RandomStream:
    """Numbers that are a function of seed, name and place."""

    def __init__(self, seed: int, name: str) -> None:
        self._salt = torch.tensor([name_salt(seed, name)])

    def uniform(self, places_N: Tensor) -> Tensor:
        """In [0, 1), 53 bits each: float64 (N,)."""
        bits_N = row_keys(self._salt, places_N, 0)
        return bits_N.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1).to(torch.float64).mul_(2.0**-53)

    def normal(self, places_N: Tensor) -> Tensor:
        """Of the standard normal distribution: float64 (N,)."""
        normal_N: Tensor = torch.special.ndtri(self.uniform(places_N).add_(2.0**-54))
        return normal_N


class AliasTable:
    """Columns of equal mass, each shared by a rank and its alias.

    Built without a loop over ranks: those below the mean are filled from those above it in turn, and where each of the
    latter is used up follows from the running sums of what is missing and what is left over.

    Args:
        probabilities_R: float64, with the sum 1.
    """

    def __init__(self, probabilities_R: Tensor) -> None:
        mass = probabilities_R * len(probabilities_R)
        small, large = (mass < 1).nonzero()[:, 0], (mass >= 1).nonzero()[:, 0]
        missing, spare = (1 - mass[small]).cumsum(0), (mass[large] - 1).cumsum(0)
        self.kept_R = mass.clamp(max=1.0)
        self.alias_R = torch.arange(len(mass))
        if len(small) and len(large):
            last = len(large) - 1
            before = torch.nn.functional.pad(missing[:-1], (1, 0))
            self.alias_R[small] = large[torch.searchsorted(spare, before, right=True).clamp(max=last)]
            crossing = torch.searchsorted(missing, spare[:-1]).clamp(max=len(small) - 1)
            self.kept_R[large[:-1]] = (1 - (missing[crossing] - spare[:-1])).clamp(0.0, 1.0)
            self.alias_R[large[:-1]] = large[1:]

    def draw(self, uniform_N: Tensor) -> Tensor:
        """The rank of each number in [0, 1), float64: int64 (N,)."""
        scaled_N = uniform_N * len(self.kept_R)
        column_N = scaled_N.to(torch.int64)
        kept_N = scaled_N.sub_(column_N) < self.kept_R[column_N]
        return torch.where(kept_N, column_N, self.alias_R[column_N])
