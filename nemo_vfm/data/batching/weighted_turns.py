"""Computes which source of a blend gives global batch g, and which of that source's batches it is.

This is the chairman assignment (Tijdeman, Discrete Mathematics 32, 1980). Of the sources that may be next without
running ahead, it takes the one with the earliest deadline. With k sources no source's count is ever further than
1 - 1/(2k - 2) from weight * g, for any g. So its share of the first g batches differs from its weight by less than 1/g.
Random draws would differ by about 1/sqrt(g).
"""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

from nemo_vfm.core.seed import derive

MAX_CYCLE = 100_000


class WeightedTurns:
    """Which source each global batch is of. After a cycle, the weights' common denominator, all begins anew.

    Args:
        weights: of the sources, each above 0; their sum does not matter.
        seed: decides among sources that are equally due.

    Raises:
        ValueError: a weight is not above 0, or the cycle is longer than MAX_CYCLE.
    """

    def __init__(self, weights: Sequence[Fraction], *, seed: int) -> None:
        self.shares = shares(weights)
        self.cycle = lcm(*(share.denominator for share in self.shares))
        self._each = [int(share * self.cycle) for share in self.shares]
        ties = sorted(range(len(weights)), key=lambda which: derive(seed, "blend", which))
        self._turns = _turns(self._each, ties)

    def turn(self, index: int) -> tuple[int, int]:
        """The source of global batch `index`, and the number of that batch among its own."""
        whole, place = divmod(index, self.cycle)
        which, before = self._turns[place]
        return which, whole * self._each[which] + before

    def count(self, which: int, index: int) -> int:
        """How many of the first `index` batches are of a source."""
        whole, place = divmod(index, self.cycle)
        return whole * self._each[which] + sum(1 for source, _ in self._turns[:place] if source == which)


def shares(weights: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Weights over their sum."""
    if not weights or min(weights) <= 0:
        raise ValueError(f"every source needs a weight above 0, got {', '.join(map(str, map(float, weights)))}")
    found = tuple(weight / sum(weights) for weight in weights)
    cycle = lcm(*(share.denominator for share in found))
    if cycle > MAX_CYCLE:
        raise ValueError(
            f"weights {', '.join(str(float(weight)) for weight in weights)} repeat after {cycle:,} batches, but at "
            f"most {MAX_CYCLE:,} are allowed; round them to fewer digits"
        )
    return found


def _turns(each: Sequence[int], ties: Sequence[int]) -> list[tuple[int, int]]:
    """One cycle: (source, its batches before) a batch.

    With n_i turns a cycle of D, x_i had: i may take turn g where n_i g / D - x_i >= 1 / (2k - 2), and must take it
    before (x_i + 1 - 1 / (2k - 2)) D / n_i. All is whole numbers, so nothing is rounded but the last division, and two
    equal fractions give equal floats.
    """
    cycle, slack = sum(each), 2 * max(2, len(each)) - 2
    counts, found = [0] * len(each), []
    for number in range(1, cycle + 1):
        due = (i for i in ties if slack * (each[i] * number - cycle * counts[i]) >= cycle)
        which = min(due, key=lambda i: (slack * (counts[i] + 1) - 1) / each[i])
        found.append((which, counts[which]))
        counts[which] += 1
    return found
