"""Takes a part of what a source holds, the same on every machine."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nemo_vfm.core.log import info
from nemo_vfm.core.storage.files import sha256_text

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Subset:
    """A share of some things, and the first of that share; a larger share contains every smaller one.

    Args:
        first: how many at most; None takes all.
        share: part of 1, rounded up to whole things; None takes all.
    """

    first: int | None
    share: float | None

    def __post_init__(self) -> None:
        if self.first is not None and self.first < 1:
            raise ValueError(f"first is {self.first}, but it must be at least 1")
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}, but it must be above 0 and at most 1, such as 0.01")

    def of(self, found: Sequence[_T], name: Callable[[_T], str], what: str) -> list[_T]:
        """The chosen ones in their order; which belong to a share follows from their names alone."""
        chosen = list(found)
        if self.share is not None:
            by_lot = sorted(range(len(found)), key=lambda place: sha256_text(name(found[place])))
            count = math.ceil(self.share * len(found) - 1e-9)  # 0.07 * 100 is more than 7
            chosen = [found[place] for place in sorted(by_lot[:count])]
        chosen = chosen[: self.first]
        if len(chosen) < len(found):
            info(f"the source gives {len(chosen):,} of {len(found):,} {what}")
        return chosen
