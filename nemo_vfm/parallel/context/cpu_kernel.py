"""Computes the attention of one tile by the CPU flash kernel under `scaled_dot_product_attention`."""

import torch
from torch import Tensor

from nemo_vfm.core.device import has_fast_bf16


class CpuFlash:
    """torch's CPU flash kernel, which gives the lse and takes the one over all keys back.

    It is an operator of torch's own dispatcher without a stable name; `usable` says whether this torch has it.
    """

    @staticmethod
    def usable() -> bool:
        """Whether this torch has both operators."""
        names = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
        return all(hasattr(torch.ops.aten, name) for name in names)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
        """See `OneTile.forward`."""
        q, k, v = (_quick(x) for x in (q, k, v))
        shape = q.shape
        q, k, v = _matched(q, k, v, diagonal)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, diagonal)
        return out.reshape(shape), lse.reshape(shape[:3])

    def backward(self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
                 diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `OneTile.backward`."""
        do, q, k, v, out = (_quick(x) for x in (do, q, k, v, out))
        shape, kv_heads = q.shape, k.shape[1]
        q, k, v = _matched(q, k, v, diagonal)
        do, out, lse = do.reshape(q.shape), out.reshape(q.shape), lse.reshape(q.shape[:3])
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            do, q, k, v, out, lse, 0.0, diagonal
        )
        dk, dv = (torch.unflatten(x, 1, (kv_heads, -1)).sum(2) for x in (dk, dv))
        return dq.reshape(shape), dk, dv


def _quick(x: Tensor) -> Tensor:
    """16 bits in fp32 where this CPU has no 16-bit products: the same numbers, and not a hundred times slower."""
    return x.float() if x.dtype.itemsize == 2 and not has_fast_bf16() else x


def _matched(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """As many heads of keys as of queries: queries that share a head become rows of it, unless rows mean time."""
    shared = q.shape[1] // k.shape[1]
    if shared == 1:
        return q, k, v
    if diagonal:
        return q, k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    return q.reshape(q.shape[0], k.shape[1], -1, q.shape[3]), k, v
