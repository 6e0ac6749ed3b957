"""Clusters unit vectors by spherical k-means.

Clusters overlap; the same vectors and seed give the same ones.
Shape letters: N vectors, K clusters, D width of a vector.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = 4096
_ITERATIONS = 20
_SAMPLES_PER_CLUSTER = 256  # more do not move a centroid


def num_clusters(num_vectors: int) -> int:
    """About a thousand vectors a cluster: the cosines inside all of them then cost a thousand times N."""
    return min(10_000, max(1, num_vectors // 1000))


def clusters(
    vectors_ND: NDArray[np.float32], count: int, *, seed: int = 0, nearest: int = 2
) -> list[NDArray[np.int64]]:
    """For each cluster the positions of its vectors, ascending. A vector is in its `nearest` clusters.

    Neighbours on both sides of a border share one of their two clusters, most often.
    """
    if count <= 1:
        return [np.arange(len(vectors_ND))]
    import torch

    from nemo_vfm.core.device import device
    from nemo_vfm.core.seed import generator

    order = torch.randperm(len(vectors_ND), generator=generator(seed, "k-means"))
    vectors = torch.nn.functional.normalize(torch.from_numpy(vectors_ND), dim=1)
    centroids = _centroids(vectors[order[: _SAMPLES_PER_CLUSTER * count]].to(device()), count)
    most = min(nearest, count)
    found = [(part.to(device()) @ centroids.T).topk(most, dim=1).indices.cpu() for part in torch.split(vectors, _ROWS)]
    chosen = torch.cat(found).numpy()  # (N, nearest) clusters of each vector, the nearest first
    owners = np.repeat(np.arange(len(vectors_ND)), chosen.shape[1])
    places = np.argsort(chosen.ravel(), kind="stable")
    borders = np.searchsorted(chosen.ravel()[places], np.arange(count + 1))
    return [np.sort(owners[places[a:b]]) for a, b in pairwise(borders) if b > a]


def _centroids(sample_ND: "Tensor", count: int) -> "Tensor":
    import torch

    centroids = sample_ND[:count].clone()  # the sample comes in a random order
    before = None
    for _ in range(_ITERATIONS):
        best = [(part @ centroids.T).max(dim=1) for part in torch.split(sample_ND, _ROWS)]
        cosine, owner = torch.cat([b.values for b in best]), torch.cat([b.indices for b in best])
        if before is not None and torch.equal(owner, before):
            break
        before = owner
        # Sums by cluster as products, since adding by index gives other last digits at every run on a GPU.
        total = torch.zeros(count, sample_ND.shape[1], device=sample_ND.device)
        for part, owners in zip(torch.split(sample_ND, _ROWS), torch.split(owner, _ROWS), strict=True):
            total += torch.nn.functional.one_hot(owners, count).to(part.dtype).T @ part
        centroids = torch.nn.functional.normalize(total, dim=1)
        empty = (centroids.abs().sum(dim=1) == 0).nonzero()[:, 0]
        # A cluster that lost all its vectors begins anew at those that fit nowhere.
        centroids[empty] = sample_ND[cosine.argsort(stable=True)[: len(empty)]]
    return centroids
