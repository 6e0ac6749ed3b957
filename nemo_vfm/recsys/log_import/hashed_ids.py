"""Turns ids of any size into rows of embedding tables, by hashing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.row_fingerprint import mix64_


@runtime_checkable
class IdMap(Protocol):
    """Says which row of its feature's table an id has."""

    def table_rows(self, feature: str, ids: Jagged) -> Jagged:
        """The same lengths, with rows in place of ids."""
        ...


class HashedIds:
    """Row = mix(id) modulo the rows of the table, where mix is a bijection of 64 bits: the last steps of SplitMix64.

    The same id has the same row in every run, log and feature whose tables are equally large. A table of R rows that
    gets n ids loses about n - R (1 - e^(-n/R)) of them to collisions.

    Args:
        num_rows: of a table.
        num_rows_of: of the tables of these features, in place of `num_rows`.
    """

    def __init__(self, *, num_rows: int, num_rows_of: Mapping[str, int] | None = None) -> None:
        self.num_rows, self.num_rows_of = num_rows, dict(num_rows_of or {})
        if small := {name: rows for name, rows in {"": num_rows, **self.num_rows_of}.items() if rows < 1}:
            raise ValueError(f"num_rows must be at least 1, got {next(iter(small.values()))}")

    def table_rows(self, feature: str, ids: Jagged) -> Jagged:
        """See `IdMap`."""
        mixed = mix64_(ids.values_N.clone()).numpy().view(np.uint64)
        rows = mixed % np.uint64(self.num_rows_of.get(feature, self.num_rows))
        return replace(ids, values_N=torch.from_numpy(rows.astype(np.int64)))
