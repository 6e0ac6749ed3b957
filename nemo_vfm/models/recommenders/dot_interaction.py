"""Computes the dot products of all pairs of vectors of a sample.

Shape letters: B samples, V vectors, D width, P pairs.
"""

import torch
from torch import Tensor


def num_pairs(vectors: int, self_interaction: bool) -> int:
    """P: V (V - 1) / 2, and V more with each vector's product with itself."""
    return vectors * (vectors + (1 if self_interaction else -1)) // 2


def dot_interaction(x_BVD: Tensor, self_interaction: bool) -> Tensor:
    """Z = X X^T below the diagonal, row by row: (B, P) (Naumov et al., 1906.00091, section 2.1.3).

    Args:
        self_interaction: whether the diagonal is in it.
    """
    vectors = x_BVD.shape[1]
    row, column = torch.tril_indices(vectors, vectors, 0 if self_interaction else -1, device=x_BVD.device)
    return torch.bmm(x_BVD, x_BVD.transpose(1, 2)).flatten(1).index_select(1, row * vectors + column)
