"""Says which row of an embedding table an id looks up.

Shape letter: N ids.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.row_fingerprint import mix64_


@dataclass(frozen=True)
class TableRows:
    """The rows of a feature's table.

    Args:
        rows: how many there are.
        hash: "none": ids are rows. "modulo": the remainder of the id. "mix64": the remainder of 64 bits mixed from it,
            so that ids with a common factor do not share rows.
    """

    rows: int
    hash: Literal["none", "modulo", "mix64"] = "none"

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"a table of {self.rows} rows: it must have at least 1")
        if self.hash not in ("none", "modulo", "mix64"):
            raise ValueError(f"hash {self.hash!r}: use none, modulo or mix64")

    def of(self, values_N: Tensor, feature: str) -> Tensor:
        """The row of each id: int64, N."""
        if self.hash == "none":
            bad = (values_N < 0) | (values_N >= self.rows)
            if bad.any():
                raise DataError(
                    f"{feature}: the id {int(values_N[bad][0])} is not in its table, which has the rows 0 to "
                    f"{self.rows - 1}. "
                    "Give its table a hash (modulo or mix64), or more rows."
                )
            return values_N
        return (mix64_(values_N.clone()) if self.hash == "mix64" else values_N) % self.rows
