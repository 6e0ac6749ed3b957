"""Computes the shuffled position of any index from a count and a key, without the other indices.

A stored permutation would have to be drawn as a whole at each start. For 250 million sequences of 4,096 tokens, a
trillion tokens, it takes 2 GB.
"""

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.seed import derive

_ROUNDS = 6
_FEW = (
    1 << 14
)  # sorted at once, which is even; a network over so few numbers prefers some orders (five: up to 1.7 times)


def shuffled(places: NDArray[np.int64], count: int, seed: int, *names: str | int) -> NDArray[np.int64]:
    """Where a shuffle of `count` things puts these; a bijection of range(count).

    Few things are sorted by random numbers. For many, a Feistel network over the next power of four, walked along its
    cycle until it is back in range (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, section 4).

    Args:
        places: numbers below `count`.
        seed, names: which shuffle.
    """
    keys = [np.uint64(derive(seed, "shuffle", *names, turn)) for turn in range(_ROUNDS)]
    if count <= _FEW:
        numbers = _mixed(_mixed(np.arange(count, dtype=np.uint64) + keys[0]) ^ keys[1])
        return np.argsort(numbers, kind="stable")[places]
    half = ((count - 1).bit_length() + 1) // 2
    found = _walked(places.astype(np.uint64), half, keys)
    while (outside := found >= np.uint64(count)).any():
        found[outside] = _walked(found[outside], half, keys)
    return found.astype(np.int64)


def _walked(numbers: NDArray[np.uint64], half: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> bits, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return left << bits | right


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit depends on every bit (Steele, Lea and Flood, "Fast splittable generators", 2014, figure 16)."""
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)
