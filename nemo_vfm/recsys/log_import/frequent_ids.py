"""Gives frequent ids rows of their own, after a pass over the log that counts ids in bounded memory.

Shape letters: N values, V ids of a vocabulary.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.storage.files import atomic_path, sha256_text
from nemo_vfm.core.types.component import no_component
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk

_Ids = NDArray[np.int64]


class FrequentIds:
    """An id that occurs at least `min_count` times in the log has a row to itself; all others share row 0.

    Row 1 is that of the most frequent id; of equally frequent ones, the smaller id comes first.

    Args:
        num_rows: of a table at most, row 0 included; the rarest ids that do not fit share row 0, too.
        num_rows_of: of the tables of these features, in place of `num_rows`.
        min_count: occurrences of an id, in all samples, bad rows left out and down-sampling not yet done.
        counted_ids: different ids of a feature that are counted at once, at about 50 bytes each. Where there are more,
            the rarest are forgotten and may restart: a warning then says by how much counts are too low.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        num_rows_of: Mapping[str, int] | None = None,
        min_count: int = 2,
        counted_ids: int = 1_000_000,
    ) -> None:
        self.num_rows, self.num_rows_of, self.min_count = num_rows, dict(num_rows_of or {}), min_count
        self.counted_ids = counted_ids
        if min(num_rows, min_count, counted_ids, *self.num_rows_of.values()) < 1:
            raise ValueError(
                f"num_rows ({num_rows}), those of num_rows_of ({self.num_rows_of}), min_count ({min_count}) and "
                f"counted_ids ({counted_ids}) must be at least 1"
            )

    def vocabulary(self, chunks: Iterable[LogChunk]) -> "Vocabulary":
        """Count the ids of all samples, and give them rows."""
        counts = counts_of_features(chunks, self.counted_ids)
        own = {name: self.num_rows_of.get(name, self.num_rows) - 1 for name in counts}
        return Vocabulary({name: top_ids(name, one, self.min_count)[: own[name]] for name, one in counts.items()})


def top_ids(name: str, found: "IdCounts", min_count: int) -> _Ids:
    """The ids that were counted at least so often, the most frequent first; of equally frequent ones, the smaller."""
    ids, counts = found.totals()
    if found.missed:
        warn(
            f"{name} has more than {found.limit:,} different ids; counts may be too low by {found.missed:,}. Raise "
            "counted_ids"
        )
    order = np.lexsort((ids, -counts))
    return ids[order[counts[order] >= min_count]]


def counts_of_features(chunks: Iterable[LogChunk], counted_ids: int) -> "dict[str, IdCounts]":
    """How often each id of each feature comes."""
    counts: dict[str, IdCounts] = {}
    for chunk in chunks:
        for name, ids in chunk.features.items():
            counts.setdefault(name, IdCounts(counted_ids)).add(ids.values_N.numpy())
    return counts


@no_component
@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The ids that have rows of their own."""

    ids: Mapping[str, _Ids]  #: of each feature (V,): that at place v has row v + 1
    _sorted: dict[str, tuple[_Ids, _Ids]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """A hash of all ids in their order: two tables with the same one have the same rows for the same ids."""
        each = (f"{name} {hashlib.sha256(self.ids[name].tobytes()).hexdigest()}" for name in sorted(self.ids))
        return sha256_text("\n".join(each))

    def table_rows(self, feature: str, ids: Jagged) -> Jagged:
        """See `IdMap`."""
        # Ids in ascending order and their rows; in front one id that is not looked for, with row 0.
        if feature not in self.ids:
            have = ", ".join(self.ids)
            raise UserError(
                f"the vocabulary has no ids of {feature}; it has {have}. KnownIds with grow: true adds them"
            )
        if feature not in self._sorted:
            order = np.argsort(self.ids[feature])
            self._sorted[feature] = np.append(0, self.ids[feature][order]), np.append(0, order + 1)
        known, rows = self._sorted[feature]
        values = ids.values_N.numpy()
        places = np.searchsorted(known[1:], values) + 1
        places[known[np.minimum(places, len(known) - 1)] != values] = 0
        return replace(ids, values_N=torch.from_numpy(rows[places]))

    def write(self, path: Path) -> None:
        """A safetensors file with a tensor of ids a feature."""
        from safetensors.numpy import save_file

        with atomic_path(path) as temporary:
            save_file(dict(self.ids), temporary)


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary that `Vocabulary.write` wrote."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return Vocabulary(load_file(path))
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}. Delete it to count ids again") from error


@dataclass(slots=True)
class IdCounts:
    """Counts of one feature's ids, exact as long as there are at most `limit` different ones.

    Past that, the ids with the lowest counts are forgotten (as in Manku and Motwani's lossy counting, 2002): each count
    is too low by at most `missed`.
    """

    limit: int
    missed: int = 0
    _ids: list[_Ids] = field(default_factory=list)
    _counts: list[_Ids] = field(default_factory=list)

    def add(self, ids_N: _Ids) -> None:
        """Count ids."""
        ids, counts = np.unique(ids_N, return_counts=True)
        self._ids.append(ids)
        self._counts.append(counts)
        if sum(map(len, self._ids)) > 2 * self.limit:
            ids, counts = self.totals()
            if len(ids) > self.limit:
                lowest = int(np.partition(counts, len(counts) - self.limit - 1)[len(counts) - self.limit - 1])
                kept = counts > lowest
                self._ids, self._counts, self.missed = [ids[kept]], [counts[kept]], self.missed + lowest

    def totals(self) -> tuple[_Ids, _Ids]:
        """Different ids in ascending order, and their counts."""
        ids, places = np.unique(np.concatenate(self._ids), return_inverse=True)
        counts = np.zeros(len(ids), np.int64)
        np.add.at(counts, places, np.concatenate(self._counts))
        self._ids, self._counts = [ids], [counts]
        return ids, counts
