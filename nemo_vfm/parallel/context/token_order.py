"""Splits tokens in their global order into each rank's share, and joins the shares again."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.context.tiles import Spans, local_spans


def shard(x: Tensor, dim: int, *, rank: int, ranks: int, causal: bool = False) -> Tensor:
    """A rank's share of the tokens along `dim`, in the order that `attend`, told the same of `causal`, expects."""
    return take_spans(x, own_spans(x.shape[dim], rank=rank, ranks=ranks, causal=causal), dim)


def own_spans(tokens: int, *, rank: int, ranks: int, causal: bool = False) -> Spans:
    """The places of a rank's share of so many tokens; see `shard`. UserError if they cannot be shared evenly."""
    if tokens % ranks:
        raise UserError(
            f"a sequence of {tokens} tokens is not divisible by {ranks} context ranks. "
            f"Pad it to {-(-tokens // ranks) * ranks}, or choose a context degree that divides it"
        )
    return local_spans(rank, ranks, tokens // ranks, causal)


def unshard(pieces: Sequence[Tensor], dim: int, *, causal: bool = False) -> Tensor:
    """The whole sequence of all ranks' shares, by rank."""
    ranks, tokens = len(pieces), pieces[0].shape[dim]
    return merge_in_order(pieces, [local_spans(rank, ranks, tokens, causal) for rank in range(ranks)], dim)


def take_spans(x: Tensor, spans: Spans, dim: int) -> Tensor:
    """The rows of these spans, one after another."""
    parts = [x.narrow(dim, start, stop - start) for start, stop in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def merge_in_order(pieces: Sequence[Tensor], spans: Sequence[Spans], dim: int) -> Tensor:
    """Rows of several pieces in the order of their positions."""
    parts = []
    for piece, of_piece in zip(pieces, spans, strict=True):
        sizes = [stop - start for start, stop in of_piece]
        parts += list(zip(of_piece, torch.split_with_sizes(piece, sizes, dim), strict=True))
    return torch.cat([part for _, part in sorted(parts, key=lambda found: found[0])], dim)


def split(whole: Tensor, spans: Sequence[Spans], dim: int) -> list[Tensor]:
    """The way back from `joined`: the pieces of a tensor that has the rows of all of them in order."""
    row, rows = 0, {}
    for start, stop in sorted(span for of_piece in spans for span in of_piece):
        rows[start, stop] = (row, row + stop - start)
        row += stop - start
    return [take_spans(whole, tuple(rows[span] for span in of_piece), dim) for of_piece in spans]
