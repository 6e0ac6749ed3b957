"""Batches many attention tiles into few calls of kernels for rows of unequal lengths.

Packed samples make hundreds of small tiles, and a GPU would wait for each. Tiles of one shape (whole, or up to the
diagonal) with disjoint queries go into one call. Every sample of the batch is a sequence of its own.

Shape letters: T rows of all sequences, N sequences, H heads, D head dimension; B, K and S as in `kernel`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from nemo_vfm.parallel.context.kernel import Gradients, RunningSoftmax
from nemo_vfm.parallel.context.tiles import Tile


@dataclass(frozen=True)
class SequenceOffsets:
    """Where sequences begin and end, for queries and for keys."""

    q_ends_N1: Tensor  #: int32, 0 and then where each sequence of queries ends
    k_ends_N1: Tensor  #: likewise for keys
    q_most: int  #: rows of the longest sequence of queries
    k_most: int  #: of keys
    diagonal: bool  #: as in `Tile`


class Sequences(Protocol):
    """Attention over sequences of unequal lengths, scaled by 1/sqrt(D); keys may have fewer heads than queries."""

    def forward(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, lengths: SequenceOffsets) -> tuple[Tensor, Tensor]:
        """(values (T, H, D), lse (H, T))."""
        ...

    def backward(self, do_THD: Tensor, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, out_THD: Tensor, lse_HT: Tensor,
                 lengths: SequenceOffsets) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Gradients of queries, keys and values."""
        ...


class VarlenBatch:
    """A kernel from one for sequences of unequal lengths."""

    def __init__(self, sequences: Sequences) -> None:
        self._sequences = sequences

    def forward(self, q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[Tile], into: RunningSoftmax) -> None:
        """See `Kernel.forward`."""
        for batch in rounds(tuple(tiles)):
            rows, keys = _runs([tile.q for tile in batch]), _runs([tile.k for tile in batch])
            lengths = _lengths(batch, q.shape[0], q.device)
            out, lse = self._sequences.forward(_pack(q, rows), _pack(k, keys), _pack(v, keys), lengths)
            out_BHTD = _unpack(out, q.shape[0])
            lse_BHT = torch.unflatten(lse, 1, (q.shape[0], -1)).transpose(0, 1)
            for run, packed in _both(rows):
                into.add(run, out_BHTD[:, :, packed], lse_BHT[:, :, packed])

    def backward(self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, tiles: Sequence[Tile],
                 into: Gradients) -> None:  # fmt: skip
        """See `Kernel.backward`."""
        for batch in rounds(tuple(tiles)):
            rows, keys = _runs([tile.q for tile in batch]), _runs([tile.k for tile in batch])
            lengths = _lengths(batch, q.shape[0], q.device)
            do_T, q_T, out_T = (_pack(x, rows) for x in (do, q, out))
            lse_HT = torch.cat([lse[:, :, run] for run in rows], 2).transpose(0, 1).flatten(1)
            dq, dk, dv = self._sequences.backward(do_T, q_T, _pack(k, keys), _pack(v, keys), out_T, lse_HT, lengths)
            into.add_rows(_both(rows), _unpack(dq, q.shape[0]))
            into.add_keys(_both(keys), _unpack(dk, q.shape[0]), _unpack(dv, q.shape[0]))


@lru_cache(maxsize=256)
def rounds(tiles: tuple[Tile, ...]) -> tuple[tuple[Tile, ...], ...]:
    """Tiles that may go into one call: of one shape, and no row of queries twice."""
    found: list[list[Tile]] = []
    for tile in tiles:
        for batch in found:
            last = batch[-1]
            if last.diagonal == tile.diagonal and last.q_stop <= tile.q_start:
                batch.append(tile)
                break
        else:
            found.append([tile])
    return tuple(tuple(batch) for batch in found)


def _runs(slices: Sequence[slice]) -> list[slice]:
    """Neighbouring slices as one: what is copied and added in one piece."""
    found: list[slice] = []
    for one in slices:
        if found and found[-1].stop == one.start:
            found[-1] = slice(found[-1].start, one.stop)
        else:
            found.append(one)
    return found


def _both(runs: Sequence[slice]) -> list[tuple[slice, slice]]:
    """(where a run lies in the tensor, where in the packed rows)."""
    ends = [0, *accumulate(run.stop - run.start for run in runs)]
    return [(run, slice(ends[index], ends[index + 1])) for index, run in enumerate(runs)]


def _pack(x_BHSD: Tensor, runs: Sequence[slice]) -> Tensor:
    """(T, H, D): the rows of the first sample, then of the next."""
    x_BSHD = x_BHSD.transpose(1, 2)
    return torch.cat([x_BSHD[:, run] for run in runs], 1).flatten(0, 1)


def _unpack(x_THD: Tensor, batch: int) -> Tensor:
    """(B, H, T / B, D)."""
    return torch.unflatten(x_THD, 0, (batch, -1)).transpose(1, 2)


@lru_cache(maxsize=256)
def _lengths(tiles: tuple[Tile, ...], batch: int, device: torch.device) -> SequenceOffsets:
    """Kept between calls: every layer of a step asks for the same, and moving it to a GPU waits for the GPU."""
    q = [tile.q_stop - tile.q_start for tile in tiles]
    k = [tile.k_stop - tile.k_start for tile in tiles]
    q_ends, k_ends = (torch.tensor([0, *accumulate(sizes * batch)], dtype=torch.int32) for sizes in (q, k))
    return SequenceOffsets(q_ends.to(device), k_ends.to(device), max(q), max(k), tiles[0].diagonal)
