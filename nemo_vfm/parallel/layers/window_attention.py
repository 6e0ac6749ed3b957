"""Computes causal attention in a sliding window, a block of queries at a time.

A block's keys are those that any of its queries sees, so a long text takes time and memory by the window and not by its
length.
Shape letters: B batch, H heads of queries, G heads of keys and values, S queries, L keys, E head dimension.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

_MIN_QUERIES, _MAX_QUERIES = 128, 1024  # of a block


def in_window(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """Whether a query at each place sees a key at each: itself and the `window - 1` before it."""
    return (keys <= queries) & (keys > queries - window)


def window_attention(q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, window: int, lengths: Sequence[int]) -> Tensor:
    """Softmax attention scaled by 1/sqrt(E), (B, H, S, E).

    Args:
        window: keys that a query sees, its own among them.
        lengths: of the documents that follow each other in S, which do not see each other.
    """
    documents = zip(*(x.split_with_sizes(list(lengths), 2) for x in (q_BHSE, k_BGSE, v_BGSE)), strict=True)
    return torch.cat([part for q, k, v in documents for part in _blocks(q, k, v, window)], 2)


def _blocks(q: Tensor, k: Tensor, v: Tensor, window: int) -> list[Tensor]:
    """One document's, block after block."""
    length, step = q.shape[2], min(max(window, _MIN_QUERIES), _MAX_QUERIES)
    if length <= window:
        return [F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)]
    # With a mask, the only kernel for fewer heads of keys than of queries is the one that keeps all scores.
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    places, found = torch.arange(length, device=q.device), []
    for start in range(0, length, step):
        here = slice(start, min(start + step, length))
        seen = slice(max(0, start - window + 1), here.stop)
        mask_SL = in_window(places[here, None], places[seen], window)
        found.append(F.scaled_dot_product_attention(q[:, :, here], k[:, :, seen], v[:, :, seen], mask_SL))
    return found
