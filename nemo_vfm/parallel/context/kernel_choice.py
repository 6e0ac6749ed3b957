"""Chooses the fastest attention kernel that runs on the queries' device and passes a test there."""

import logging
from functools import lru_cache

import torch
from torch import Tensor

from nemo_vfm.parallel.context.cpu_kernel import CpuFlash
from nemo_vfm.parallel.context.gpu_kernel import GpuFlash
from nemo_vfm.parallel.context.kernel import Gradients, Kernel, Looped, Plain, RunningSoftmax
from nemo_vfm.parallel.context.tiles import tiles
from nemo_vfm.parallel.context.varlen_batching import VarlenBatch

_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2}


def chosen(q_BHSD: Tensor) -> Kernel:
    """A kernel for these queries, and for keys of the same dtype."""
    return _chosen(q_BHSD.device, q_BHSD.dtype, q_BHSD.shape[-1])


@lru_cache
def _chosen(device: torch.device, dtype: torch.dtype, width: int) -> Kernel:
    sample = torch.empty(0, width, device=device, dtype=dtype)
    if device.type == "cpu" and CpuFlash.usable():
        return _proven(Looped(CpuFlash()), sample)
    if GpuFlash.usable(sample):
        return _proven(VarlenBatch(GpuFlash()), sample)
    return Looped(Plain())


def _proven(kernel: Kernel, like: Tensor) -> Kernel:
    """The kernel if it gives the plain one's numbers, else that one and a warning.

    These are operators whose arguments may change with any version of torch, and a wrong lse makes a wrong gradient
    without an error.
    """
    try:
        given, expected = _tried(kernel, like), _tried(Looped(Plain()), like)
        worst = max(float((one - other).abs().max()) for one, other in zip(given, expected, strict=True))
        reason = f"its results differ from the formula's by {worst:.1e}"
        good = worst < _TOLERANCE.get(like.dtype, 1e-4)
    except (RuntimeError, TypeError, ValueError) as error:
        good, reason = False, f"it failed with: {' '.join(str(error).split())[:200]}"
    if good:
        return kernel
    logging.getLogger("nemo_vfm").warning(
        "torch %s has no flash attention that works for %s on %s with width %d: %s. Attention over several devices "
        "uses the plain formula, which is slower and needs more memory.",
        torch.__version__, str(like.dtype).removeprefix("torch."), like.device, like.shape[-1], reason,
    )  # fmt: skip
    return Looped(Plain())


def _tried(kernel: Kernel, like: Tensor) -> list[Tensor]:
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
