"""Finds the most similar of unit vectors block by block, so that memory stays bounded. N vectors, D wide."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Pair:
    """Vectors `a` < `b` (by position) and their cosine."""

    a: int
    b: int
    cosine: float


def _blocks(vectors_ND: NDArray[np.float32], rows: int) -> Iterator[tuple[int, int, NDArray[np.float32]]]:
    """(first row, first column, cosines) of each block on or above the diagonal."""
    for top in range(0, len(vectors_ND), rows):
        for left in range(top, len(vectors_ND), rows):
            yield top, left, vectors_ND[top : top + rows] @ vectors_ND[left : left + rows].T


def nearest(vectors_ND: NDArray[np.float32], *, rows: int = 1024) -> NDArray[np.float32]:
    """The cosine of each vector to the other one that is most like it, (N,); 0 where there is no other."""
    best = np.full(len(vectors_ND), 0.0 if len(vectors_ND) < 2 else -1.0, dtype=np.float32)
    for top, left, cosines in _blocks(vectors_ND, rows):
        if top == left:
            np.fill_diagonal(cosines, -1.0)
        np.maximum(best[top : top + rows], cosines.max(axis=1), out=best[top : top + rows])
        np.maximum(best[left : left + rows], cosines.max(axis=0), out=best[left : left + rows])
    return best
