"""Computes attention by torch's flash kernels, after a test of the fastest that runs on the queries' device.

The operators are torch's own: on a CPU that under `scaled_dot_product_attention`, on a GPU those under
`torch.nn.attention.varlen` (torch 2.11 to 2.13), whose public function does not accept another lse for its backward
pass. They have no stable names; `chosen` tests them before use.
"""

import logging
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.core.device import has_fast_bf16
from nemo_vfm.core.sanitize import beginning
from nemo_vfm.parallel.context.kernel import Gradients, Kernel, MathAttention, RunningSoftmax, TiledKernel
from nemo_vfm.parallel.context.tiles import tiles
from nemo_vfm.parallel.context.varlen_batching import SequenceOffsets, VarlenBatch

_STEP = 8  # the kernels' head dimensions are multiples of this
_WIDEST = 256


class GpuFlash:
    """torch's flash kernels for 16-bit rows of unequal lengths."""

    @staticmethod
    def is_usable(q: Tensor) -> bool:
        """Whether they take such queries; a GPU before compute capability 8.0 has none."""
        names = ("_flash_attention_forward", "_flash_attention_backward")
        return (
            q.is_cuda
            and q.dtype in (torch.float16, torch.bfloat16)
            and q.shape[-1] <= _WIDEST
            and torch.cuda.get_device_capability(q.device) >= (8, 0)
            and all(hasattr(torch.ops.aten, name) for name in names)
        )

    def forward(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, lengths: SequenceOffsets) -> tuple[Tensor, Tensor]:
        """See `Sequences.forward`."""
        width = q_THD.shape[2]
        q, k, v = (_pad_head_dim(x) for x in (q_THD, k_TKD, v_TKD))
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, lengths.q_ends_N1, lengths.k_ends_N1, lengths.q_most, lengths.k_most, 0.0, lengths.diagonal,
            False, scale=width**-0.5,
        )  # fmt: skip
        return out[..., :width], lse

    def backward(self, do_THD: Tensor, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, out_THD: Tensor, lse_HT: Tensor,
                 lengths: SequenceOffsets) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `Sequences.backward`."""
        width = q_THD.shape[2]
        do, q, k, v, out = (_pad_head_dim(x) for x in (do_THD, q_THD, k_TKD, v_TKD, out_THD))
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device), torch.empty(0, device=q.device)
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            do, q, k, v, out, lse_HT.contiguous(), lengths.q_ends_N1, lengths.k_ends_N1, lengths.q_most,
            lengths.k_most, 0.0, lengths.diagonal, *no_dropout, scale=width**-0.5,
        )  # fmt: skip
        return dq[..., :width], dk[..., :width], dv[..., :width]


def _pad_head_dim(x_THD: Tensor) -> Tensor:
    """Filled up with zeros to a width that the kernels take: they change no score."""
    return F.pad(x_THD, (0, -x_THD.shape[2] % _STEP)).contiguous()


class CpuFlash:
    """torch's CPU flash kernel, which gives the lse and takes the one over all keys back.

    It is an operator of torch's own dispatcher without a stable name; `is_usable` says whether this torch has it.
    """

    @staticmethod
    def is_usable() -> bool:
        """Whether this torch has both operators."""
        names = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
        return all(hasattr(torch.ops.aten, name) for name in names)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
        """See `OneTile.forward`."""
        q, k, v = (_to_fast_dtype(x) for x in (q, k, v))
        shape = q.shape
        q, k, v = _match_heads(q, k, v, diagonal)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, diagonal)
        return out.reshape(shape), lse.reshape(shape[:3])

    def backward(self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
                 diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `OneTile.backward`."""
        do, q, k, v, out = (_to_fast_dtype(x) for x in (do, q, k, v, out))
        shape, kv_heads = q.shape, k.shape[1]
        q, k, v = _match_heads(q, k, v, diagonal)
        do, out, lse = do.reshape(q.shape), out.reshape(q.shape), lse.reshape(q.shape[:3])
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            do, q, k, v, out, lse, 0.0, diagonal
        )
        dk, dv = (torch.unflatten(x, 1, (kv_heads, -1)).sum(2) for x in (dk, dv))
        return dq.reshape(shape), dk, dv


def _to_fast_dtype(x: Tensor) -> Tensor:
    """16 bits in fp32 where this CPU has no 16-bit products: the same numbers, and not a hundred times slower."""
    return x.float() if x.dtype.itemsize == 2 and not has_fast_bf16() else x


def _match_heads(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """As many heads of keys as of queries: queries that share a head become rows of it, unless rows mean time."""
    shared = q.shape[1] // k.shape[1]
    if shared == 1:
        return q, k, v
    if diagonal:
        return q, k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    return q.reshape(q.shape[0], k.shape[1], -1, q.shape[3]), k, v


_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2}


@lru_cache
def choose_kernel(device: torch.device, dtype: torch.dtype, width: int) -> Kernel:
    """A kernel for queries and keys of these."""
    sample = torch.empty(0, width, device=device, dtype=dtype)
    if device.type == "cpu" and CpuFlash.is_usable():
        return _verify_kernel(TiledKernel(CpuFlash()), sample)
    if GpuFlash.is_usable(sample):
        return _verify_kernel(VarlenBatch(GpuFlash()), sample)
    return TiledKernel(MathAttention())


def _verify_kernel(kernel: Kernel, like: Tensor) -> Kernel:
    """The kernel if it gives the plain one's numbers, else that one and a warning.

    These are operators whose arguments may change with any version of torch, and a wrong lse makes a wrong gradient
    without an error.
    """
    try:
        given, expected = _try_kernel(kernel, like), _try_kernel(TiledKernel(MathAttention()), like)
        worst = max(float((one - other).abs().max()) for one, other in zip(given, expected, strict=True))
        reason = f"its results differ from the formula's by {worst:.1e}"
        good = worst < _TOLERANCE.get(like.dtype, 1e-4)
    except (RuntimeError, TypeError, ValueError) as error:
        good, reason = False, f"it failed with: {beginning(error)}"
    if good:
        return kernel
    logging.getLogger("nemo_vfm").warning(
        "torch %s has no flash attention that works for %s on %s with width %d: %s. Attention over several devices "
        "uses the plain formula, which is slower and needs more memory.",
        torch.__version__, str(like.dtype).removeprefix("torch."), like.device, like.shape[-1], reason,
    )  # fmt: skip
    return TiledKernel(MathAttention())


def _try_kernel(kernel: Kernel, like: Tensor) -> list[Tensor]:
    """Values, lse and gradients of a small causal packed case with shared heads, by a generator of its own."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, 16, like.shape[-1]) for heads in (4, 2, 2, 4)]
    q, k, v, do = (torch.randn(shape, generator=generator).to(like) for shape in shapes)
    held = ((0, 8), (16, 24))
    seen = tiles(held, held, (3, 21), True)
    running, sums = RunningSoftmax(q), Gradients(q, k)
    kernel.forward(q, k, v, seen, running)
    out, lse = running.result()
    kernel.backward(do, q, k, v, out, lse, seen, sums)
    return [out.float(), lse.float(), sums.q_BHSD.float(), sums.kv_2BKLD.float()]
