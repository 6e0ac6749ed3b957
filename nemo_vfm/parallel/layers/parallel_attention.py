"""Computes attention for models: full, causal or in a window, also where tokens or heads are split over devices.

Models call only these functions, so that splitting the sequence over devices changes this file and no model. Of causal
tokens, early ones attend to few others and late ones to many, so each context rank has an early and a late chunk
(`context/token_order.py`).

Where there are fewer heads of keys and values than tensor ranks, several ranks use one head. As in Megatron-Core, the
weights stay split evenly, so each is held once. The ranks of one head exchange the outputs of their parts of the
linear. Every rank then has the head's key and value, and takes its share of the queries. In the backward pass the
gradients of these copies are added up.

Shape letters: B batch, H heads of queries, G heads of keys and values (groups), S query positions, L key positions,
D and E head dimension, N packed samples, F features of a group (queries, key, value), Q queries of a group.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.parallel.layers.linear import emulated_dtype
from nemo_vfm.parallel.layers.token_layout import SharedHead, active
from nemo_vfm.parallel.layers.uncompiled import uncompiled

#: From queries, keys, values and a mask, as `attention`.
AttentionFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]

_FUNCTIONS: list[AttentionFunction] = []
_MIN_QUERIES, _MAX_QUERIES = 128, 1024  # of a block of a window


@contextmanager
def attention_by(function: AttentionFunction) -> Iterator[None]:
    """Let another function, such as that of FP8, compute what `attention` is called for within."""
    _FUNCTIONS.append(function)
    try:
        yield
    finally:
        _FUNCTIONS.pop()


def attention(q_BHSD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention without causality, scaled by 1/sqrt(D).

    Args:
        mask: boolean, broadcastable to (B, H, S, L), True where a key may be seen. Every query must see at least
            one key, else its softmax is over nothing and the result is not a number.

    Returns:
        (B, H, S, D), in the dtype of the queries, or autocast's.
    """
    if _FUNCTIONS:
        return _FUNCTIONS[-1](q_BHSD, k_BHLD, v_BHLD, mask)
    dtype = emulated_dtype(q_BHSD)
    if dtype is None:
        return F.scaled_dot_product_attention(q_BHSD, k_BHLD, v_BHLD, attn_mask=mask)
    with torch.autocast("cpu", enabled=False):
        q, k, v = (x.to(dtype).float() for x in (q_BHSD, k_BHLD, v_BHLD))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).to(dtype)


def self_attention(q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, segments: Sequence[int] | None = None) -> Tensor:
    """`attention` of a sequence with itself, wherever its tokens lie: each rank gives and gets those of its own.

    Args:
        segments: lengths of packed samples in the whole sequence, which do not see each other; None for one sample.
    """
    if active().context is None and segments is None:
        return attention(q_BHSD, k_BHSD, v_BHSD)
    return _over_ranks(q_BHSD, k_BHSD, v_BHSD, segments, causal=False)


def causal_attention(
    q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, lengths: Sequence[int] | None = None, window: int | None = None
) -> Tensor:  # fmt: skip
    """Softmax attention to own and earlier tokens, scaled by 1/sqrt(E); H / G queries share a key and a value.

    Args:
        lengths: of the documents that a row is packed of, which do not see each other; None for one document.
        window: tokens that each sees, itself among them; None for all.

    Returns:
        (B, H, S, E), in the dtype of the queries, or autocast's.
    """
    if active().context is None and (window is not None or lengths is None):
        return _on_one_device(q_BHSE, k_BGSE, v_BGSE, lengths, window)
    assert window is None, "plans of context ranks are refused for a model with a window"
    return _over_ranks(q_BHSE, k_BGSE, v_BGSE, lengths, causal=True)


@uncompiled  # messages between ranks, and kernels that are tried first
def _over_ranks(q: Tensor, k: Tensor, v: Tensor, segments: Sequence[int] | None, *, causal: bool) -> Tensor:
    from nemo_vfm.parallel.context.attend import attend
    from nemo_vfm.parallel.context.scheme import Scheme

    layout = active()
    return attend(q, k, v, group=layout.context, scheme=layout.scheme or Scheme(), causal=causal, segments=segments)


def _on_one_device(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int] | None, window: int | None) -> Tensor:
    dtype = emulated_dtype(q)
    if dtype is not None:
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.to(dtype).float() for x in (q, k, v))
            return _on_one_device(q, k, v, lengths, window).to(dtype)
    if window is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    documents = zip(*(x.split_with_sizes(list(lengths or (q.shape[2],)), 2) for x in (q, k, v)), strict=True)
    return torch.cat([part for q, k, v in documents for part in _window_blocks(q, k, v, window)], 2)


def _window_blocks(q: Tensor, k: Tensor, v: Tensor, window: int) -> list[Tensor]:
    """One document's attention in a window, block after block of queries.

    A block's keys are those that any of its queries sees, so a long text takes time and memory by the window and not by
    its length.
    """
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


def in_window(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """Whether a query at each place sees a key at each: itself and the `window - 1` before it."""
    return (keys <= queries) & (keys > queries - window)


def split_causal(x: Tensor, dim: int) -> Tensor:
    """This context rank's early and late chunk of the tokens along `dim`. UserError if the tokens cannot be divided."""
    group = active().context
    if group is None:
        return x
    from nemo_vfm.parallel.context.token_order import shard

    return shard(x, dim, rank=group.rank(), ranks=group.size(), causal=True)


def own_queries(q_BSGQE: Tensor) -> Tensor:
    """Those that this rank attends with; all where no other rank has the same key."""
    shared = active().shared_head
    if shared is None:
        return q_BSGQE
    each = q_BSGQE.shape[3] // shared.ranks
    return q_BSGQE.narrow(3, shared.rank * each, each)


def whole_groups(qkv_BSF: Tensor) -> Tensor:
    """Queries, key and value of whole groups, from this rank's even part of them."""
    shared = active().shared_head
    return qkv_BSF if shared is None else _gather_groups(qkv_BSF, shared)


@uncompiled  # messages between ranks
def _gather_groups(qkv_BSF: Tensor, shared: SharedHead) -> Tensor:
    found: Tensor = _GatherGroups.apply(qkv_BSF, shared)  # type: ignore[no-untyped-call]
    return found


class _GatherGroups(torch.autograd.Function):
    """All parts along the last dimension; backward sums over the ranks and keeps the own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shared: SharedHead) -> Tensor:
        ctx.shared = shared
        if shared.group is None:
            return torch.cat(list(x.new_empty(shared.ranks, *x.shape)), -1)
        from nemo_vfm.parallel.context.collectives import all_gather, everyone

        return torch.cat(list(all_gather(everyone(shared.group), x)), -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _sum_groups(torch.stack(grads[0].chunk(ctx.shared.ranks, -1)), ctx.shared), None


def _sum_groups(parts: Tensor, shared: SharedHead) -> Tensor:
    if shared.group is None:
        return torch.empty_like(parts[0])
    from nemo_vfm.parallel.context.collectives import everyone, reduce_scatter

    return reduce_scatter(everyone(shared.group), parts)
