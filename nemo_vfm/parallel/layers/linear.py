"""Tells whether this machine multiplies a dtype in hardware, and emulates bf16 products where it does not.

A CPU without bf16 instructions still runs bf16 recipes: a laptop tries out what a cluster will train. torch's own bf16
products are then scalar loops. A linear's input gradient takes 287 ms instead of 4 ms in fp32 (AVX2 EPYC, 2 threads,
torch 2.13, 2048 x 384 x 384). A bf16 product is exact in fp32, and hardware adds such products in fp32. So rounding the
operands to bf16, multiplying them in fp32 and rounding the result gives the same numbers up to the order of summation.
Only `Linear` and `attention` do that here; with hardware for it they are torch's own.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.device import has_fast_bf16


class Linear(nn.Linear):
    """`nn.Linear`, also quick under bf16 autocast on a CPU that has no bf16 products."""

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        dtype = emulated_dtype(x)
        if dtype is None or type(self.weight) is not nn.Parameter:  # a DTensor's product is its own business
            return super().forward(x)
        return rounded_linear(x, self.weight, self.bias, dtype)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T, by the same fast path as `Linear`."""
    dtype = emulated_dtype(x)
    return F.linear(x, weight) if dtype is None else rounded_linear(x, weight, None, dtype)


def rounded_linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The linear of operands rounded to `dtype`, multiplied in fp32, rounded to `dtype`."""
    with torch.autocast("cpu", enabled=False):
        rounded_bias = None if bias is None else bias.to(dtype).float()
        return F.linear(x.to(dtype).float(), weight.to(dtype).float(), rounded_bias).to(dtype)


def emulated_dtype(x: Tensor) -> torch.dtype | None:
    """The 16-bit dtype autocast asks for where this CPU cannot multiply it; else None."""
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return None
    dtype = torch.get_autocast_dtype("cpu")
    return dtype if dtype == torch.bfloat16 and not _NATIVE[-1] and _slow_bf16() else None


_NATIVE = [False]


@contextmanager
def native_products() -> Iterator[None]:
    """Torch's own bf16 products on any CPU, however slow: they allocate what they do where hardware has them."""
    _NATIVE.append(True)
    try:
        yield
    finally:
        _NATIVE.pop()


def mark_constants() -> None:
    """Let the compiler take for constants what is asked about the processor: else graphs break there.

    As a decorator it would import the compiler, which takes a second, with this file.
    """
    for question in (has_fast_bf16, _slow_bf16):
        torch.compiler.assume_constant_result(question)  # type: ignore[no-untyped-call]


def _slow_bf16() -> bool:  # the compiler looks into a cached function, so it is marked around that
    return _slow_bf16_said()


@cache
def _slow_bf16_said() -> bool:
    slow = not has_fast_bf16()
    if slow:
        logging.getLogger("nemo_vfm").info(
            "This CPU has no bf16 matmul: operands are rounded to bf16 and multiplied in fp32."
        )
    return slow
