"""Declares attention kernels over tiles, which return the values and the log of each softmax's denominator.

That logarithm (`lse`) makes attention divisible. Two results over different keys merge exactly. A backward pass that is
given the final values and lse needs only its own keys. Every kernel offers both directions.

Shape letters: B batch, H heads, K heads of keys and values, S query rows, L key rows, D head dimension.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from nemo_vfm.parallel.context.tiles import Tile


class RunningSoftmax:
    """Attended values that grow as more keys come by: the online softmax, kept at least in fp32."""

    def __init__(self, q_BHSD: Tensor) -> None:
        self._dtype, wide = q_BHSD.dtype, sum_dtype(q_BHSD)
        self.out_BHSD = torch.zeros_like(q_BHSD, dtype=wide, memory_format=torch.contiguous_format)
        self.lse_BHS = q_BHSD.new_full(q_BHSD.shape[:3], float("-inf"), dtype=wide)
        self._written: list[slice] = []

    def add(self, rows: slice, out: Tensor, lse: Tensor) -> None:
        """Merge what these rows saw in other keys."""
        own_out, own_lse = self.out_BHSD[:, :, rows], self.lse_BHS[:, :, rows]
        # What is written to first is copied, which saves four passes over it.
        first = all(rows.stop <= one.start or one.stop <= rows.start for one in self._written)
        if self._written and self._written[-1].stop == rows.start:
            self._written.append(slice(self._written.pop().start, rows.stop))
        else:
            self._written.append(rows)
        if first:
            own_out.copy_(out)
            own_lse.copy_(lse)
            return
        both = torch.logaddexp(own_lse, lse.to(own_lse.dtype))
        own_out.mul_((own_lse - both).exp().unsqueeze(3)).add_(out * (lse - both).exp().unsqueeze(3))
        own_lse.copy_(both)

    def result(self) -> tuple[Tensor, Tensor]:
        """(values in the dtype of the queries, lse)."""
        return self.out_BHSD.to(self._dtype), self.lse_BHS


class Gradients:
    """Sums of the three gradients, kept at least in fp32."""

    def __init__(self, q_BHSD: Tensor, k_BKLD: Tensor) -> None:
        wide = sum_dtype(q_BHSD)
        self.q_BHSD = torch.zeros_like(q_BHSD, dtype=wide, memory_format=torch.contiguous_format)
        self.kv_2BKLD = k_BKLD.new_zeros((2, *k_BKLD.shape), dtype=wide)

    def add_rows(self, places: Sequence[tuple[slice, slice]], dq_BHSD: Tensor) -> None:
        """Add to queries: to the rows of the first slice of each pair, those of the second."""
        for own, given in places:
            self.q_BHSD[:, :, own] += dq_BHSD[:, :, given]

    def add_keys(self, places: Sequence[tuple[slice, slice]], dk_BKLD: Tensor, dv_BKLD: Tensor) -> None:
        """Add to keys and values, likewise."""
        for own, given in places:
            self.kv_2BKLD[0, :, :, own] += dk_BKLD[:, :, given]
            self.kv_2BKLD[1, :, :, own] += dv_BKLD[:, :, given]


class Kernel(Protocol):
    """Attention over tiles, scaled by 1/sqrt(D)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[Tile], into: RunningSoftmax) -> None:
        """Merge what the queries see in these tiles."""
        ...

    def backward(self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, tiles: Sequence[Tile],
                 into: Gradients) -> None:  # fmt: skip
        """Add the gradients that pass through these tiles; `out` and `lse` are those over all keys."""
        ...


def sum_dtype(x: Tensor) -> torch.dtype:
    """In which sums over keys and over ranks are kept: 16 bits would lose a rank's share among many."""
    return torch.promote_types(x.dtype, torch.float32)


class TiledKernel:
    """A kernel from one that computes a single tile: tile by tile."""

    def __init__(self, one: "OneTile") -> None:
        self._one = one

    def forward(self, q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[Tile], into: RunningSoftmax) -> None:
        """See `Kernel.forward`."""
        for tile in tiles:
            out, lse = self._one.forward(q[:, :, tile.q], k[:, :, tile.k], v[:, :, tile.k], tile.diagonal)
            into.add(tile.q, out, lse)

    def backward(self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, tiles: Sequence[Tile],
                 into: Gradients) -> None:  # fmt: skip
        """See `Kernel.backward`."""
        for tile in tiles:
            do_t, q_t, out_t, lse_t = (x[:, :, tile.q] for x in (do, q, out, lse))
            k_t, v_t = (x[:, :, tile.k] for x in (k, v))
            dq, dk, dv = self._one.backward(do_t, q_t, k_t, v_t, out_t, lse_t, tile.diagonal)
            into.add_rows([(tile.q, slice(None))], dq)
            into.add_keys([(tile.k, slice(None))], dk, dv)


class OneTile(Protocol):
    """Attention over one tile; keys and values may have fewer heads than the queries."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
        """(values, lse)."""
        ...

    def backward(self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
                 diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Gradients of queries, keys and values."""
        ...


class MathAttention:
    """One tile as the formulas say, at least in fp32: what the others are compared with, and what runs where none can.

    It holds the scores of a whole tile in memory.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
        """See `OneTile.forward`."""
        q, k, v = (x.to(sum_dtype(x)) for x in (q, k, v))
        scores = _scores(q, k, diagonal)
        lse = scores.logsumexp(4)
        out = (scores - lse.unsqueeze(4)).exp() @ v.unsqueeze(2)
        return out.flatten(1, 2), lse.flatten(1, 2)

    def backward(self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
                 diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `OneTile.backward`: P = exp(scores - lse), dS = P (dP - rowsum(dO O))."""
        do, q, k, v, out = (x.to(sum_dtype(x)) for x in (do, q, k, v, out))
        group = (k.shape[1], q.shape[1] // k.shape[1])
        weights = (_scores(q, k, diagonal) - torch.unflatten(lse, 1, group).unsqueeze(4)).exp()
        do_BKGSD: Tensor = torch.unflatten(do, 1, group)
        dv = (weights.mT @ do_BKGSD).sum(2)
        row_BHS = (do * out).sum(3)
        change = do_BKGSD @ v.unsqueeze(2).mT - torch.unflatten(row_BHS, 1, group).unsqueeze(4)
        change = weights * change / q.shape[3] ** 0.5
        dq = (change @ k.unsqueeze(2)).flatten(1, 2)
        return dq, (change.mT @ torch.unflatten(q, 1, group)).sum(2), dv


def _scores(q: Tensor, k: Tensor, diagonal: bool) -> Tensor:
    """(B, K, H/K, S, L)."""
    scores: Tensor = torch.unflatten(q, 1, (k.shape[1], -1)) @ k.unsqueeze(2).mT / q.shape[3] ** 0.5
    if not diagonal:
        return scores
    return scores.masked_fill(scores.new_ones(scores.shape[3:], dtype=torch.bool).triu(1), float("-inf"))
