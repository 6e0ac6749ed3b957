"""Draws random numbers by their place in a named stream, in any order.

Shape letter: N places.
"""

import torch
from torch import Tensor

from nemo_vfm.sparse.tables.counter_hash import name_salt, row_keys, signed_salt


class RandomStream:
    """Numbers that are a function of seed, name and place.

    Args:
        seed: of the log.
        name: what is drawn.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._salt = torch.tensor([signed_salt(name_salt(seed, name))])

    def uniform(self, places_N: Tensor) -> Tensor:
        """In [0, 1), 53 bits each: float64 (N,)."""
        bits_N = row_keys(self._salt, places_N, 0)
        return bits_N.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1).to(torch.float64).mul_(2.0**-53)

    def normal(self, places_N: Tensor) -> Tensor:
        """Of the standard normal distribution: float64 (N,)."""
        normal_N: Tensor = torch.special.ndtri(self.uniform(places_N).add_(2.0**-54))
        return normal_N
