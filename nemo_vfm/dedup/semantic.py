"""Finds for each vector, in order of preference, the earlier one that is most similar to it.

This is SemDeDup (arXiv 2303.09540) with two departures. A vector is in its two nearest clusters, and an item is only
dropped in favour of an item that stays. Shape letters: N vectors, D width of a vector.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.dedup.cluster import clusters, num_clusters

_ROWS = 1024
_ABSENT = -1.0


def as_text(vector_D: NDArray[np.float32]) -> str:
    """Base64 of float16: the last digits of a float32 differ from machine to machine and say nothing."""
    if vector_D.ndim != 1 or not np.isfinite(vector_D).all():
        raise ValueError(f"a vector of shape {vector_D.shape} must have one axis and finite numbers")
    return base64.b64encode(vector_D.astype("<f2").tobytes()).decode()


def as_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """(N, D), lengths as they were, at most 1."""
    rows = np.stack([np.frombuffer(base64.b64decode(text), dtype="<f2") for text in texts]).astype(np.float32)
    # float16 may have made a unit vector a little longer.
    return np.asarray(rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True)), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Matches:
    """Who is like whom."""

    cosine_N: NDArray[np.float32]  #: to the most similar item of higher preference; -1 where there is none
    place_N: NDArray[np.int64]  #: the position of that item; meaningless where there is none
    nearest_N: NDArray[np.float32]  #: cosine to the most similar item of all; 0 where there is no other

    def duplicates(self, above: float) -> dict[int, int]:
        """`{item that goes: the item that stays in its place}`: the root of its chain, which nobody is like before."""
        stays_for: dict[int, int] = {}
        for item in np.flatnonzero(self.cosine_N > above).tolist():  # ascending, and each is like an earlier one
            place = int(self.place_N[item])
            stays_for[item] = stays_for.get(place, place)
        return stays_for


def match(vectors_ND: NDArray[np.float32], *, count: int | None = None, seed: int = 0) -> Matches:
    """Compare inside clusters, block by block, on the accelerator where there is one.

    Args:
        vectors_ND: of length 1 or less; what is to be kept comes first.
        count: clusters; None takes one for a thousand vectors.
    """
    import torch

    from nemo_vfm.core.device import device

    vectors = torch.from_numpy(vectors_ND).to(device())
    best = torch.full((len(vectors),), _ABSENT, device=vectors.device)
    place = torch.zeros(len(vectors), dtype=torch.int64, device=vectors.device)
    nearest = torch.full_like(best, _ABSENT if len(vectors) > 1 else 0.0)
    for group in clusters(vectors_ND, num_clusters(len(vectors)) if count is None else count, seed=seed):
        members = torch.from_numpy(group).to(vectors.device)
        pieces = torch.split(members, _ROWS) if len(group) else ()
        for number, rows in enumerate(pieces):
            for columns in pieces[number:]:  # later items, a row each: along columns torch takes three times as long
                cosines = vectors[columns] @ vectors[rows].T
                if columns is rows:
                    cosines.masked_fill_(rows[None] >= columns[:, None], _ABSENT)
                # Note the best of a block; no item stands twice in `rows` or in `columns`.
                found = cosines.max(dim=1)
                better = found.values > best[columns]
                best[columns[better]], place[columns[better]] = found.values[better], rows[found.indices[better]]
                nearest[columns] = nearest[columns].maximum(found.values)
                nearest[rows] = nearest[rows].maximum(cosines.amax(dim=0))
    return Matches(best.cpu().numpy(), place.cpu().numpy(), nearest.cpu().numpy())
