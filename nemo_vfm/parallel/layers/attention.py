"""Computes attention for models, also where the sequence is split over devices.

Models call only these functions, so that splitting the sequence over devices changes this file and no model.
Shape letters: B batch, H heads, S query positions, L key positions, D head dimension, N packed samples.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.parallel.fp8 import fp8_attention
from nemo_vfm.parallel.layers.linear import emulated_dtype
from nemo_vfm.parallel.layers.token_layout import active


def self_attention(q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, segments: Sequence[int] | None = None) -> Tensor:
    """`attention` of a sequence with itself, wherever its tokens lie: each rank gives and gets those of its own.

    Args:
        segments: lengths of packed samples in the whole sequence, which do not see each other; None for one sample.
    """
    layout = active()
    if layout.context is None and segments is None:
        return attention(q_BHSD, k_BHSD, v_BHSD)
    from nemo_vfm.parallel.context.attend import attend
    from nemo_vfm.parallel.context.scheme import Scheme

    scheme = layout.scheme or Scheme()
    o_BHSD: Tensor = attend(q_BHSD, k_BHSD, v_BHSD, group=layout.context, scheme=scheme, segments=segments)
    return o_BHSD


def packed_attention(
    q_1HSD: Tensor, k_NHLD: Tensor, v_NHLD: Tensor, mask_N11L: Tensor, spans: Sequence[tuple[int, tuple[int, int]]]
) -> Tensor:
    """`attention` of packed samples' queries, each to the keys of its own sample: (1, H, S, D).

    Args:
        spans: (sample, its queries) in their order; together they are all queries.
    """
    parts = [
        attention(q_1HSD[:, :, begin:end], k_NHLD[n : n + 1], v_NHLD[n : n + 1], mask_N11L[n : n + 1])
        for n, (begin, end) in spans
    ]
    return torch.cat(parts, 2)


def attention(q_BHSD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention without causality, scaled by 1/sqrt(D).

    Args:
        mask: boolean, broadcastable to (B, H, S, L), True where a key may be seen. Every query must see at least
            one key, else its softmax is over nothing and the result is not a number.

    Returns:
        (B, H, S, D), in the dtype of the queries, or autocast's.
    """
    if fp8_attention.is_on():
        return fp8_attention.fp8_attention(q_BHSD, k_BHLD, v_BHLD, mask)
    dtype = emulated_dtype(q_BHSD)
    if dtype is None:
        return F.scaled_dot_product_attention(q_BHSD, k_BHLD, v_BHLD, attn_mask=mask)
    with torch.autocast("cpu", enabled=False):
        q, k, v = (x.to(dtype).float() for x in (q_BHSD, k_BHLD, v_BHLD))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).to(dtype)
