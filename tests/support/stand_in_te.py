"""Stands in for Transformer Engine on a CPU, with our own numerics: to try which calls are made, and in what order."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_vfm.parallel.fp8.fp8_product import emulated_product
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Fp8Tensor, quantise, quantise_by


class Stored:
    """A quantised tensor, by row and turned, as far as it is kept."""

    def __init__(self, by_row: Fp8Tensor | None, turned: Fp8Tensor | None) -> None:
        self.by_row, self.turned = by_row, turned

    def update_usage(self, *, rowwise_usage: bool, columnwise_usage: bool) -> None:
        """Forget a copy; one that was never made cannot be kept."""
        assert not columnwise_usage or self.turned is not None
        self.by_row, self.turned = self.by_row if rowwise_usage else None, self.turned if columnwise_usage else None


class Quantizer:
    internal = False

    def __init__(self, *given: Any, pow2: bool = False, kind: str = "tensor", factor: Tensor | None = None) -> None:
        self.dtype = next(one for one in given if isinstance(one, torch.dtype))
        self.pow2, self.kind, self.factor, self.amax = pow2, kind, factor, None

    def set_usage(self, *, rowwise: bool, columnwise: bool) -> None:
        """Theirs makes no transposed copy alone."""
        assert rowwise
        self.columnwise = columnwise

    def quantize(self, x: Tensor) -> Stored:
        """Both copies, each by its own amax."""
        assert self.internal and x.is_contiguous()
        if self.factor is not None:
            assert self.amax is not None
            self.amax.copy_(x.abs().max())
            first = quantise_by(x, self.factor[0], self.dtype)
            return Stored(first, Fp8Tensor(first.elements.T, first.scale) if self.columnwise else None)
        first, second = (quantise(one, self.kind, self.dtype, pow2=self.pow2) for one in (x, x.T.contiguous()))  # type: ignore[arg-type]
        return Stored(first, second if self.columnwise else None)


def _given(scale: Tensor, amax: Tensor, dtype: torch.dtype) -> Quantizer:
    found = Quantizer(dtype, factor=scale)
    found.amax = amax
    return found


def _block(dtype: torch.dtype, *, force_pow_2_scales: bool, block_scaling_dim: int, **_: bool) -> Quantizer:
    return Quantizer(dtype, pow2=force_pow_2_scales, kind="128x128" if block_scaling_dim == 2 else "1x128")


def _current(dtype: torch.dtype, _: torch.device, *, force_pow_2_scales: bool) -> Quantizer:
    return Quantizer(dtype, pow2=force_pow_2_scales)


def general_gemm(a: Any, b: Any, *, layout: str = "TN", out_dtype: torch.dtype, **_: Any) -> tuple[Tensor]:
    """Of a weight and rows (TN), of a weight and a gradient (NN), of rows and a gradient (NT)."""
    first, second = {"TN": (b.by_row, a.by_row), "NN": (b.by_row, a.turned), "NT": (b.turned, a.turned)}[layout]
    return (emulated_product(first, second).to(out_dtype),)


def prepare_for_saving(*kept: Any) -> tuple[list[Tensor | None], list[Any]]:
    """Tensors, and what they came in without them."""
    tensors: list[Tensor | None] = []
    for one in kept:
        tensors += [one] if one is None or isinstance(one, Tensor) else [*one.turned]
    return tensors, [None if one is None or isinstance(one, Tensor) else one for one in kept]


def restore_from_func_ctx(ctx: Any) -> list[Any]:
    found, saved = [], list(ctx.saved_tensors)
    for one in ctx.tensor_objects:
        found.append(saved.pop(0) if one is None else Stored(None, Fp8Tensor(saved.pop(0), saved.pop(0))))
    ctx.tensor_objects = None
    return found


def install(patch: pytest.MonkeyPatch) -> None:
    te = ModuleType("transformer_engine.pytorch")
    te.DType = SimpleNamespace(kFloat8E4M3=E4M3, kFloat8E5M2=E5M2)  # type: ignore[attr-defined]
    te.Float8Quantizer, te.Float8CurrentScalingQuantizer = _given, _current  # type: ignore[attr-defined]
    te.Float8BlockQuantizer, te.MXFP8Quantizer = _block, lambda dtype: Quantizer(dtype, kind="mx")  # type: ignore[attr-defined]
    te.prepare_for_saving, te.restore_from_func_ctx = prepare_for_saving, restore_from_func_ctx  # type: ignore[attr-defined]
    package, extensions = ModuleType("transformer_engine"), ModuleType("transformer_engine.pytorch.cpp_extensions")
    package.pytorch, extensions.general_gemm = te, general_gemm  # type: ignore[attr-defined]
    for module in (package, te, extensions):
        patch.setitem(sys.modules, module.__name__, module)
    patch.delitem(sys.modules, "nemo_vfm.parallel.fp8.te", raising=False)
