"""Multiplies quantised matrices: in float32 on any device, or by torch's `scaled_mm` where the hardware has it.

`torch_op` makes a function one operator to `torch.compile`, which then needs to understand nothing inside it.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import ScalingType, scaled_mm

from nemo_vfm.parallel.fp8.quantise import Fp8Tensor, Granularity, dequantise

#: torch's names of what shares a scale, by ours.
_TORCH_NAMES = {"tensor": ScalingType.TensorWise, "row": ScalingType.RowWise, "1x128": ScalingType.BlockWise1x128,
                "128x128": ScalingType.BlockWise128x128}  # fmt: skip
_OUTER, _BLOCKS = ("tensor", "row"), ("tensor", "row", "1x128", "128x128")  # the former do not change along the sum


P = ParamSpec("P")


R = TypeVar("R")


def torch_op(name: str, like: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that writes to none of its arguments and returns none of them.

    Outside a compiled graph it is called as it is: an operator costs some 20 us a call.

    Args:
        name: of the operator.
        like: of the same arguments, makes tensors of the shapes and dtypes that it returns.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        operator = torch.library.custom_op(f"nemo_vfm::{name}", function, mutates_args=())
        operator.register_fake(like)

        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                return operator(*arguments, **named)  # type: ignore[no-any-return]
            return function(*arguments, **named)

        call.operator = operator  # type: ignore[attr-defined]
        return call

    return decorate


def product(a: Fp8Tensor, b: Fp8Tensor, *, fast: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """A B^T of (M, K) and (N, K), by the hardware where it can, else emulated; for `fast` see `native_product`."""
    if _has_hardware(a.elements.device, _kind(a), _kind(b)):
        return native_product(a, b, fast=fast, dtype=dtype)
    return emulated_product(a, b, torch.promote_types(dtype, torch.float32)).to(dtype)


def is_native(device: torch.device) -> bool:
    """Whether a device has FP8 products. torch's on a CPU are slower than the emulation, and equal."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def emulated_product(a: Fp8Tensor, b: Fp8Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A B^T, summed in float32 or float64.

    One scale for a tensor or a row is multiplied in afterwards: products of elements are exact in float32, so only the
    order of the sums differs from hardware. Blocks are dequantised first; with powers of two that is exact as well.

    Args:
        a: (M, K).
        b: (N, K).
        dtype: of the sums. Those of float64 have no rounding that depends on their order.
    """
    with torch.autocast(a.elements.device.type, enabled=False):  # it would multiply in bf16
        if _kind(a) in _OUTER and _kind(b) in _OUTER:
            return a.elements.to(dtype) @ b.elements.to(dtype).T * a.scale.to(dtype) * b.scale.to(dtype).reshape(-1)
        return dequantise(a).to(dtype) @ dequantise(b).to(dtype).T


def native_product(a: Fp8Tensor, b: Fp8Tensor, *, fast: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    """A B^T by `scaled_mm`.

    Args:
        a: (M, K); K and N divisible by 16, for blocks by 128.
        b: (N, K), not E5M2 where `a` is.
        fast: sum in the tensor cores' own, shorter numbers, as is usual for the forward product alone; scales of blocks
            are never summed so.
        dtype: of the result.

    Raises:
        ValueError: the device has no hardware for such scales.
    """
    kind_a, kind_b = _kind(a), _kind(b)
    blocks = kind_a not in _OUTER or kind_b not in _OUTER
    if blocks and not _has_hardware(a.elements.device, kind_a, kind_b):
        raise ValueError(f"{a.elements.device} has no matmul for scales of {kind_a} and {kind_b}")
    if blocks:  # a row of one block is a row of blocks
        kind_a, kind_b = ("1x128" if kind == "row" else kind for kind in (kind_a, kind_b))
    scales = _laid_out(a, kind_a), _laid_out(b, kind_b, right=True)
    return _scaled_mm(a.elements, scales[0], kind_a, b.elements, scales[1], kind_b, dtype, fast and not blocks)


# torch.compile of torch 2.11 stops at torch's.
@torch_op(
    "fp8_scaled_mm",
    lambda a, a_scale, a_kind, b, b_scale, b_kind, dtype, fast: a.new_empty((len(a), len(b)), dtype=dtype),
)
def _scaled_mm(
    a: Tensor, a_scale: Tensor, a_kind: str, b: Tensor, b_scale: Tensor, b_kind: str, dtype: torch.dtype, fast: bool
) -> Tensor:
    """The hardware takes rows of A and of B; a transposed operand is copied so."""
    found: Tensor = scaled_mm(
        a.contiguous(), b.contiguous().T, a_scale, _TORCH_NAMES[a_kind], b_scale, _TORCH_NAMES[b_kind],
        output_dtype=dtype, use_fast_accum=fast,
    )  # fmt: skip
    return found


def _kind(q: Fp8Tensor) -> Granularity:
    """What shares a scale. A row of one block counts as a row."""
    rows = len(q.elements)
    if q.scale.dim() == 0:
        return "tensor"
    if q.scale.shape == (rows, 1):
        return "row"
    if q.scale.dtype == torch.float8_e8m0fnu:
        return "mx"
    return "1x128" if len(q.scale) == rows else "128x128"


def _has_hardware(device: torch.device, *kinds: Granularity) -> bool:
    """MXFP8 is emulated as yet."""
    if not is_native(device):
        return False
    if all(kind in _OUTER for kind in kinds):
        return True
    return all(kind in _BLOCKS for kind in kinds) and torch.cuda.get_device_capability(device) == (9, 0)


def _laid_out(q: Fp8Tensor, kind: Granularity, *, right: bool = False) -> Tensor:
    """The scales as cuBLAS reads them, float32: those of blocks with consecutive rows beside each other."""
    scale = q.scale.float()
    if kind == "row":
        return scale.reshape(1, -1) if right else scale.reshape(-1, 1)
    if kind == "1x128":
        return scale.T.contiguous().T
    if kind == "128x128":  # (K / 128 filled up to a multiple of 4, N / 128)
        return F.pad(scale, (0, -scale.shape[1] % 4)).contiguous().T
    return scale
