"""Computes which source of a blend gives global batch g, and which of that source's batches it is.

This is the chairman assignment (Tijdeman, Discrete Mathematics 32, 1980). Of the sources that are not ahead of their
share, the one with the earliest deadline is next. With k sources, no source's count among the first g batches is ever
further than 1 - 1/(2k - 2) from weight * g. So its share differs from its weight by less than 1/g; with random draws it
would differ by about 1/sqrt(g).
"""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

from nemo_vfm.core.seed import derive

MAX_CYCLE = 100_000


class WeightedTurns:
    """The source of each global batch. The order repeats after a cycle: the common denominator of the shares.

    Args:
        weights: of the sources, each above 0; their sum does not matter.
        seed: breaks ties between sources with the same deadline.

    Raises:
        ValueError: a weight is not above 0, or the cycle is longer than MAX_CYCLE.
    """

    def __init__(self, weights: Sequence[Fraction], *, seed: int) -> None:
        self.shares = shares(weights)
        self.cycle = lcm(*(share.denominator for share in self.shares))
        self._per_cycle = [int(share * self.cycle) for share in self.shares]
        ties = sorted(range(len(weights)), key=lambda which: derive(seed, "blend", which))
        self._turns = _turns(self._per_cycle, ties)

    def turn(self, index: int) -> tuple[int, int]:
        """(source of global batch `index`, number of that batch among the source's own)."""
        cycles, place = divmod(index, self.cycle)
        source, before = self._turns[place]
        return source, cycles * self._per_cycle[source] + before

    def count(self, which: int, index: int) -> int:
        """How many of the first `index` batches come from source `which`."""
        cycles, place = divmod(index, self.cycle)
        return cycles * self._per_cycle[which] + sum(1 for source, _ in self._turns[:place] if source == which)


def shares(weights: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Each weight's share of their sum. ValueError as of `WeightedTurns`."""
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


def _turns(per_cycle: Sequence[int], ties: Sequence[int]) -> list[tuple[int, int]]:
    """For each batch of one cycle: (source, how many batches it had before).

    Source i has n_i of D turns, and x_i so far. It may take turn g if n_i g / D - x_i >= 1 / (2k - 2), and must take it
    before (x_i + 1 - 1 / (2k - 2)) D / n_i. All are integers, so nothing is rounded except in the last division, where
    equal fractions give equal floats.
    """
    cycle, slack = sum(per_cycle), 2 * max(2, len(per_cycle)) - 2
    counts, found = [0] * len(per_cycle), []
    for number in range(1, cycle + 1):
        due = (i for i in ties if slack * (per_cycle[i] * number - cycle * counts[i]) >= cycle)
        source = min(due, key=lambda i: (slack * (counts[i] + 1) - 1) / per_cycle[i])
        found.append((source, counts[source]))
        counts[source] += 1
    return found
