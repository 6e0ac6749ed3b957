"""Holds features that change together once for all rows that repeat them (RecD's inverse keyed jagged tensor).

Shape letters: B samples, U unique rows of the group.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.jagged import Jagged


@dataclass(frozen=True, eq=False)
class DedupedGroup:
    """Unique rows of a group of features, and which each sample has. Nothing is checked, see `require_valid`."""

    features: Mapping[str, Jagged]  #: U unique rows of each; row u of all is of the same samples
    inverse_B: Tensor  #: the row of each sample, int64, 0 <= inverse < U

    def __len__(self) -> int:
        return len(self.inverse_B)

    @property
    def num_unique(self) -> int:
        """U."""
        return len(next(iter(self.features.values())))

    @property
    def factor(self) -> float:
        """Samples a unique row, B / U: what deduplication saves of the values."""
        return len(self) / max(1, self.num_unique)

    def expand(self) -> dict[str, Jagged]:
        """The features with a row a sample, as if nothing had been deduplicated."""
        return {name: feature.select(self.inverse_B) for name, feature in self.features.items()}

    def rows(self, begin: int, end: int) -> "DedupedGroup":
        """The samples begin..end, with only the unique rows that they have, in the order in which those stood."""
        inverse_B = self.inverse_B[begin:end]
        steps = torch.diff(inverse_B)
        if len(inverse_B) and bool(((steps == 0) | (steps == 1)).all()):  # as clustered samples have it: no copies
            first, last = int(inverse_B[0]), int(inverse_B[-1])
            its = {name: feature.rows(first, last + 1) for name, feature in self.features.items()}
            return DedupedGroup(its, inverse_B - first)
        used_V, inverse = torch.unique(inverse_B, return_inverse=True)
        return DedupedGroup({name: feature.select(used_V) for name, feature in self.features.items()}, inverse)

    def to(self, device: torch.device | str) -> "DedupedGroup":
        """The same group on `device`."""
        moved = {name: feature.to(device) for name, feature in self.features.items()}
        return DedupedGroup(moved, self.inverse_B.to(device, non_blocking=True))

    def require_valid(self, num_rows: Mapping[str, int] | None = None) -> None:
        """Check lengths, ids and inverses before they are used as positions.

        Args:
            num_rows: of features, the rows of their tables; ids of the others are not checked.

        Raises:
            DataError: there is no feature, features differ in their rows, an inverse is no row, or see
                `Jagged.require_valid`.
        """
        if not self.features:
            raise DataError(f"a group of {len(self)} samples has no features.")
        for name, feature in self.features.items():
            if len(feature) != self.num_unique:
                first = next(iter(self.features))
                raise DataError(
                    f"{name} has {len(feature)} unique rows, but {first} of its group has {self.num_unique}."
                )
            feature.require_valid((num_rows or {}).get(name), name)
        if len(bad := ((self.inverse_B < 0) | (self.inverse_B >= self.num_unique)).nonzero()):
            sample, names = int(bad[0]), ", ".join(self.features)
            raise DataError(
                f"{names}: the inverse of sample {sample} is {int(self.inverse_B[sample])}, but the "
                f"unique rows are 0 to {self.num_unique - 1}."
            )
