"""Computes the shifts, scales and gates of a block from a conditioning vector.

This is adaLN-zero (Peebles and Xie 2023, section 3.2), and its low-rank form by Cosmos and arXiv 2503.12964
(AdaLN-LoRA). A full linear of D x 9 D in every block is a third of a model's parameters.

Shape letters: B batch, S tokens, D width, C chunks.
"""

import torch
from torch import Tensor, nn

from nemo_vfm.parallel.layers.linear import Linear


class Modulation(nn.Module):
    """One zero-initialised linear to `num_chunks` vectors, so that every block begins as the identity.

    The caller applies SiLU to the conditioning vector once for all blocks.
    """

    def __init__(self, *, width: int, num_chunks: int) -> None:
        super().__init__()
        self.num_chunks = num_chunks
        self.proj = Linear(width, num_chunks * width, bias=False)

    def forward(self, conditioning_BD: Tensor) -> tuple[Tensor, ...]:
        """`num_chunks` tensors (B, 1, D)."""
        chunks: tuple[Tensor, ...] = self.proj(conditioning_BD).unsqueeze(1).chunk(self.num_chunks, dim=2)
        return chunks


class LowRankModulation(nn.Module):
    """For each part of a block (shift, scale, gate) = U V SiLU(e) + a, with V: D -> rank and U: rank -> 3 D.

    e is the noise level as a vector and a, of 3 D, is the same for all blocks; the caller gives SiLU(e) and a side by
    side. U begins at zero, as a does, so that every block begins as the identity.

    Args:
        width: D.
        rank: of the product.
        parts: parts of a block, each with its own V and U.
        chunks_each: vectors a part takes: 3, or 2 (shift and scale) for the output, which takes the first two of a.
    """

    def __init__(self, *, width: int, rank: int, parts: int, chunks_each: int = 3) -> None:
        super().__init__()
        self.width, self.chunks_each = width, chunks_each
        self.down = nn.ModuleList(Linear(width, rank, bias=False) for _ in range(parts))
        self.up = nn.ModuleList(Linear(rank, chunks_each * width, bias=False) for _ in range(parts))

    def forward(self, conditioning_BD: Tensor) -> tuple[Tensor, ...]:
        """`parts * chunks_each` tensors (B, 1, D), for a conditioning of width 4 D."""
        vector_BD = conditioning_BD[..., : self.width]
        shared = conditioning_BD[..., self.width : (1 + self.chunks_each) * self.width]
        chunks: list[Tensor] = []
        for down, up in zip(self.down, self.up, strict=True):
            chunks += (up(down(vector_BD)) + shared).unsqueeze(1).chunk(self.chunks_each, dim=2)
        return tuple(chunks)


class TableModulation(nn.Module):
    """Adds a learned table to vectors that all blocks share, as Wan does: chunk c is table_c + vector_c.

    Args:
        width: D.
        rows: rows of the table; a single vector is added to every row.
        vectors: the slice of conditioning vectors to use: (first, last + 1).
    """

    def __init__(self, *, width: int, rows: int, vectors: tuple[int, int]) -> None:
        super().__init__()
        self.width, self.vectors = width, vectors
        self.table = nn.Parameter(torch.zeros(rows, width))

    def forward(self, conditioning_NA: Tensor) -> tuple[Tensor, ...]:
        """A tensor (N, 1, D) for each row of the table."""
        vectors = conditioning_NA.view(len(conditioning_NA), -1, self.width)[:, slice(*self.vectors)]
        chunks: tuple[Tensor, ...] = (vectors + self.table).unsqueeze(2).unbind(1)
        return chunks


def block_modulation(*, width: int, rank: int | None, parts: int) -> Modulation | LowRankModulation:
    """A shift, a scale and a gate for each part of a block; through a rank, or without one."""
    if rank is None:
        return Modulation(width=width, num_chunks=3 * parts)
    return LowRankModulation(width=width, rank=rank, parts=parts)


def last_modulation(*, width: int, rank: int | None) -> Modulation | LowRankModulation:
    """A shift and a scale for the output, which no gate follows."""
    if rank is None:
        return Modulation(width=width, num_chunks=2)
    return LowRankModulation(width=width, rank=rank, parts=1, chunks_each=2)


def modulate(x_BSD: Tensor, shift_B1D: Tensor, scale_B1D: Tensor) -> Tensor:
    """x (1 + scale) + shift, in one pass over x."""
    return torch.addcmul(shift_B1D, x_BSD, 1 + scale_B1D)


def gated(residual_BSD: Tensor, gate_B1D: Tensor, update_BSD: Tensor) -> Tensor:
    """residual + gate update, in one pass."""
    return torch.addcmul(residual_BSD, gate_B1D, update_BSD)
