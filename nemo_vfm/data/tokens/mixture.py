"""Computes which source each row comes from, and the row's number there, from the weights of the sources.

Rows alternate like the batches of a blend (`weighted_turns.py`). After n rows the count of every source is less than
one row from its share of n. Shares with no short cycle, such as those that follow from sizes, are rounded to
ten-thousandths first.
"""

import copy
from collections.abc import Mapping
from fractions import Fraction
from math import lcm

from nemo_vfm.data.batching.weighted_turns import MAX_CYCLE, WeightedTurns

ROUNDED = 10_000


class Mixture:
    """Sources in turns.

    Args:
        weights: by name, each above 0; their sum does not matter.
        seed: decides among sources that are equally due.
        before: rows that were taken from each source earlier, by another mixture; None is none.

    Raises:
        ValueError: a weight is not above 0, or there are more sources than ten thousand.
    """

    def __init__(self, weights: Mapping[str, Fraction], *, seed: int, before: Mapping[str, int] | None = None) -> None:
        self.shares = short(weights)
        self._names, self._turns = list(weights), WeightedTurns(list(self.shares.values()), seed=seed)
        self._before = [(before or {}).get(name, 0) for name in self._names]

    def after(self, before: Mapping[str, int]) -> "Mixture":
        """The same sources in the same turns, where so many rows of each were taken earlier."""
        found = copy.copy(self)
        found._before = [before.get(name, 0) for name in self._names]
        return found

    def turn(self, row: int) -> tuple[int, int]:
        """Which source, and which of its own rows."""
        which, number = self._turns.turn(row)
        return which, self._before[which] + number

    def taken(self, rows: int) -> dict[str, int]:
        """How many rows of each source there are, once so many were taken: `before` of the next mixture."""
        each = (self._before[which] + self._turns.count(which, rows) for which in range(len(self._names)))
        return dict(zip(self._names, each, strict=True))


def short(weights: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Weights over their sum, rounded where they would repeat after too many rows; none becomes 0."""
    if not weights or min(weights.values()) <= 0 or len(weights) > ROUNDED:
        weights_text = ", ".join(f"{name} {float(weight):g}" for name, weight in weights.items())
        raise ValueError(
            f"sources need weights above 0, at most {ROUNDED:,} of them; got {weights_text[:500] or 'none'}"
        )
    total = sum(weights.values())
    exact = {name: weight / total for name, weight in weights.items()}
    if lcm(*(share.denominator for share in exact.values())) <= MAX_CYCLE:
        return exact
    return _rounded(exact)


def _rounded(exact: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Ten-thousandths by the largest remainder, at least one each."""
    parts = {name: max(1, int(share * ROUNDED)) for name, share in exact.items()}
    gains = sorted(exact, key=lambda name: (parts[name] - exact[name] * ROUNDED, name))
    for place in range(ROUNDED - sum(parts.values())):
        parts[gains[place]] += 1
    while sum(parts.values()) > ROUNDED:  # what the smallest were given beyond their own
        parts[max(parts, key=lambda name: (parts[name], name))] -= 1
    return {name: Fraction(part, ROUNDED) for name, part in parts.items()}
