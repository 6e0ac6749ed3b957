"""Shards causal tokens over context ranks, and computes their attention to earlier tokens.

Early tokens attend to few others and late ones to many, so each context rank has an early and a late chunk
(`context/token_order.py`). On one device nothing changes.
Shape letters: B batch, H heads of queries, G heads of keys and values, S tokens of this rank, E head dimension.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from nemo_vfm.parallel.layers.window_attention import window_attention
from nemo_vfm.parallel.layers.linear import emulated_dtype
from nemo_vfm.parallel.layers.token_layout import active, all_parts


def split_causal(x: Tensor, dim: int) -> Tensor:
    """This context rank's early and late chunk of the tokens along `dim`.

    Raises:
        UserError: the tokens cannot be divided.
    """
    group = active().context
    if group is None:
        return x
    from nemo_vfm.parallel.context.token_order import shard

    return shard(x, dim, rank=group.rank(), ranks=group.size(), causal=True)


def gather_causal(x: Tensor, dim: int) -> Tensor:
    """All tokens along `dim` in their order, on every context rank; backward keeps the own chunks."""
    group = active().context
    if group is None:
        return x
    gathered: Tensor = _Gather.apply(x, dim, group)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        from nemo_vfm.parallel.context.token_order import unshard

        ctx.dim = dim
        return unshard(all_parts(x, group), dim, causal=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return split_causal(grads[0], ctx.dim), None, None


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
    layout = active()
    if layout.context is None and (window is not None or lengths is None):
        return _on_one_device(q_BHSE, k_BGSE, v_BGSE, lengths, window)
    assert window is None, "plans of context ranks are refused for a model with a window"
    from nemo_vfm.parallel.context.attend import attend
    from nemo_vfm.parallel.context.scheme import Scheme

    scheme = layout.scheme or Scheme()
    o_BHSE: Tensor = attend(
        q_BHSE, k_BGSE, v_BGSE, group=layout.context, scheme=scheme, causal=True, segments=lengths
    )  # fmt: skip
    return o_BHSE


def _on_one_device(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int] | None, window: int | None) -> Tensor:
    dtype = emulated_dtype(q)
    if dtype is not None:
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.to(dtype).float() for x in (q, k, v))
            return _on_one_device(q, k, v, lengths, window).to(dtype)
    if window is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return window_attention(q, k, v, window, lengths or (q.shape[2],))
