"""Makes products in FP8 allocate as on a GPU, while a model's memory is traced."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partialmethod
from unittest import mock

import torch
from torch import Tensor

from nemo_vfm.parallel.fp8 import linear_products
from nemo_vfm.parallel.fp8.fp8_product import emulated_product
from nemo_vfm.parallel.fp8.linear_products import Operands
from nemo_vfm.parallel.fp8.quantise import Quantised


@contextmanager
def fp8_products_of(*, gpu: bool) -> Iterator[None]:
    """Of a GPU's tensor cores and casts, or of the emulation on a CPU, which has both operands in fp32 as well."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(linear_products, "product", _native if gpu else _emulated))
        if gpu:
            stack.enter_context(mock.patch.object(Operands, "copies", partialmethod(_copies, Operands.copies)))
        yield


def _copies(
    self: Operands, otherwise: Callable[..., tuple[Quantised | None, Quantised | None]], x: Tensor, role: str, *,
    by_row: bool = True, turned: bool = False,
) -> tuple[Quantised | None, Quantised | None]:  # fmt: skip
    """Elements alone: scales are small, and a program holds what it computes with. Of bf16, as Triton's casts are."""
    if x.dtype != torch.bfloat16:
        return otherwise(self, x, role, by_row=by_row, turned=turned)
    x, dtype = x.contiguous(), self.dtype(role)
    first = Quantised(torch.empty_like(x, dtype=dtype), x.new_empty(())) if by_row else None
    second = Quantised(x.new_empty(x.shape[::-1], dtype=dtype), x.new_empty(())) if turned else None
    return first, second


def _emulated(a: Quantised, b: Quantised, *, fast: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """As on a device without such products; asking torch which dtype to sum in would be one more operation."""
    return emulated_product(a, b).to(dtype)


def _native(a: Quantised, b: Quantised, *, fast: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """An output, and for a while a copy of each operand that does not lie along the sum."""
    held = [operand.elements.contiguous() for operand in (a, b)]
    product = torch.empty(len(a.elements), len(b.elements), dtype=dtype)
    del held
    return product
