# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Vectors in the order in which they are to be kept in; for each the one before it that is most like it, out.

SemDeDup (arXiv 2303.09540) with two departures: a vector is in its two nearest clusters, and what an item is dropped
for is always an item that stays. Shape letters: N vectors, D width of a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.dedup.cluster import clusters, num_clusters
from nemo_vfm.dedup.groups import UnionFind

_ROWS = 1024
_ABSENT = -1.0


@dataclass(frozen=True, slots=True)
class Matches:
    """Who is like whom.

    Args:
        cosine_N: to the most similar item of higher preference; -1 where there is none.
        place_N: the position of that item; meaningless where there is none.
        nearest_N: cosine to the most similar item of all; 0 where there is no other.
    """

    cosine_N: NDArray[np.float32]
    place_N: NDArray[np.int64]
    nearest_N: NDArray[np.float32]

    def removed(self, above: float) -> float:
        """The share of items that would go."""
        return float((self.cosine_N > above).mean()) if len(self.cosine_N) else 0.0

    def duplicates(self, above: float) -> dict[int, int]:
        """`{item that goes: the item that stays in its place}`: the root of its chain, which nobody is like before."""
        groups = UnionFind(len(self.cosine_N))
        gone = np.flatnonzero(self.cosine_N > above).tolist()
        for item in gone:
            groups.union(item, int(self.place_N[item]))
        return {item: groups.find(item) for item in gone}


def match(vectors_ND: NDArray[np.float32], *, count: int | None = None, seed: int = 0) -> Matches:
    """Compare inside clusters, block by block.

    Args:
        vectors_ND: of length 1 or less; what is to be kept comes first.
        count: clusters; None takes one for a thousand vectors.
        seed: of the clusters.
    """
    found = Matches(
        np.full(len(vectors_ND), _ABSENT, np.float32),
        np.zeros(len(vectors_ND), np.int64),
        np.full(len(vectors_ND), _ABSENT if len(vectors_ND) > 1 else 0.0, np.float32),
    )
    for members in clusters(vectors_ND, num_clusters(len(vectors_ND)) if count is None else count, seed=seed):
        for rows, columns, cosines in _blocks(vectors_ND, members):
            _take(found, rows, columns, cosines)
    return found


def _blocks(
    vectors_ND: NDArray[np.float32], members: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]]:
    """(earlier items, later items, cosines) of blocks on and above the diagonal; what is not earlier is -1."""
    for top in range(0, len(members), _ROWS):
        for left in range(top, len(members), _ROWS):
            rows, columns = members[top : top + _ROWS], members[left : left + _ROWS]
            cosines = vectors_ND[rows] @ vectors_ND[columns].T
            cosines[rows[:, None] >= columns[None]] = _ABSENT
            yield rows, columns, cosines


def _take(found: Matches, rows: NDArray[np.int64], columns: NDArray[np.int64], cosines: NDArray[np.float32]) -> None:
    best, place = cosines.max(axis=0), rows[cosines.argmax(axis=0)]
    better = best > found.cosine_N[columns]
    found.cosine_N[columns[better]], found.place_N[columns[better]] = best[better], place[better]
    found.nearest_N[columns] = np.maximum(found.nearest_N[columns], best)
    found.nearest_N[rows] = np.maximum(found.nearest_N[rows], cosines.max(axis=1))
