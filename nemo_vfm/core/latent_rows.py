"""Packs latents of different shapes as rows of one tensor, and unpacks them again.

Shape letters: B batch, C channels, T frames, H height, W width, X latent positions, samples concatenated.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Size = tuple[int, int, int]


def pack_latents(latents_BCTHW: "Tensor") -> "Tensor":
    """Flatten to (X, C): sample by sample; within each, T is slowest and W fastest."""
    return latents_BCTHW.movedim(1, -1).flatten(0, 3)


def unpack_latents(rows_XC: "Tensor", sizes_THW: Sequence[Size]) -> "list[Tensor]":
    """Each sample as (1, C, T, H, W), without a copy."""
    parts = rows_XC.split_with_sizes([math.prod(size) for size in sizes_THW])
    return [part.reshape(*size, -1).movedim(-1, 0)[None] for part, size in zip(parts, sizes_THW, strict=True)]
