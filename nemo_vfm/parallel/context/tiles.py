"""Computes the blocks of attention between two pieces of a sequence, from their positions and sample borders; no torch.

A piece is a run of spans of global positions, in the order of its rows. A tile is a block of scores that is visible as
a whole (`diagonal` false) or up to its diagonal. Every attention kernel has these two shapes. Positions that no query
may see have no tile, so samples that do not meet cost nothing.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from nemo_vfm.core.errors import UserError

Span = tuple[int, int]  # global positions, the second not included
Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of queries and rows of keys, counted inside their pieces; the stops are not included."""

    q_start: int
    q_stop: int
    k_start: int
    k_stop: int
    diagonal: bool = False  #: query i of the tile sees keys 0 to i of it; else each sees all. Such a tile is square.

    @property
    def q(self) -> slice:
        """Its rows of queries."""
        return slice(self.q_start, self.q_stop)

    @property
    def k(self) -> slice:
        """Its rows of keys and values."""
        return slice(self.k_start, self.k_stop)


@lru_cache(maxsize=4096)
def local_spans(rank: int, ranks: int, tokens: int, causal: bool) -> Spans:
    """The positions of a rank's `tokens` rows.

    One run after another without causality. With it, every rank holds the chunks i and 2 n - 1 - i of 2 n, one early
    and one late: all then see equally many keys.
    """
    if not causal or ranks == 1:
        return ((rank * tokens, (rank + 1) * tokens),)
    if tokens % 2:
        raise UserError(
            f"{tokens} tokens on each of {ranks} ranks cannot be split into two equal chunks, as causal attention "
            f"needs. The sequence must be a multiple of {2 * ranks}: pad it to {(tokens + 1) * ranks}"
        )
    chunk, late = tokens // 2, 2 * ranks - 1 - rank
    return ((rank * chunk, (rank + 1) * chunk), (late * chunk, (late + 1) * chunk))


def checked_segments(segments: Sequence[int] | None, length: int) -> tuple[int, ...]:
    """Lengths of consecutive samples that fill a sequence of `length` tokens; one sample where None."""
    if segments is None:
        return (length,)
    found = tuple(int(size) for size in segments)
    if any(size < 1 for size in found):
        raise UserError(
            f"a packed sample has {min(found)} tokens. Every segment needs at least one: leave this one out"
        )
    if sum(found) != length:
        raise UserError(
            f"the {len(found)} segments have {sum(found)} tokens together, but the sequence has {length} over all "
            "ranks. Segments are lengths in the whole sequence; give the padding its own segment"
        )
    return found


@lru_cache(maxsize=4096)
def tiles(q_spans: Spans, k_spans: Spans, segments: tuple[int, ...], causal: bool) -> tuple[Tile, ...]:
    """The blocks in which these queries may see these keys."""
    ends = tuple(accumulate(segments))
    found: list[Tile] = []
    q_row = 0
    for q_start, q_stop in q_spans:
        k_row = 0
        for k_start, k_stop in k_spans:
            # The samples of which both spans hold some.
            late, early = max(q_start, k_start), min(q_stop, k_stop)
            index = min(bisect_right(ends, late), len(ends) - 1)
            start = ends[index - 1] if index else 0
            while index < len(ends) and start < early:
                q = (max(q_start, start), min(q_stop, ends[index]))
                k = (max(k_start, start), min(k_stop, ends[index]))
                q_by, k_by = q_row - q_start, k_row - k_start
                for one in _visible_tiles(q, k, causal):
                    _append(found, Tile(one.q_start + q_by, one.q_stop + q_by, one.k_start + k_by, one.k_stop + k_by,
                                        one.diagonal))  # fmt: skip
                start = ends[index]
                index += 1
            k_row += k_stop - k_start
        q_row += q_stop - q_start
    return tuple(found)


def _visible_tiles(q: Span, k: Span, causal: bool) -> Iterator[Tile]:
    """Tiles in global positions: of two runs of one sample, what the queries may see."""
    if not causal or k[1] <= q[0]:
        yield Tile(*q, *k)
        return
    low, high = max(q[0], k[0]), min(q[1], k[1])
    if low >= high:
        return
    if k[0] < low:
        yield Tile(low, q[1], k[0], low)
    yield Tile(low, high, low, high, diagonal=True)
    if high < q[1]:
        yield Tile(high, q[1], low, high)


def _append(found: list[Tile], tile: Tile) -> None:
    """Add a tile, or make the last one larger where both are one block: fewer, larger products are faster."""
    last = found[-1] if found else None
    if last is None or last.diagonal or tile.diagonal:
        found.append(tile)
    elif last.q == tile.q and last.k_stop == tile.k_start:
        found[-1] = Tile(tile.q_start, tile.q_stop, last.k_start, tile.k_stop)
    elif last.k == tile.k and last.q_stop == tile.q_start:
        found[-1] = Tile(last.q_start, tile.q_stop, tile.k_start, tile.k_stop)
    else:
        found.append(tile)
