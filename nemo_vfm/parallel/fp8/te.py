"""Computes a linear's three products by Transformer Engine 2.20; imported only where a recipe chooses it.

Histories and what ranks agree on are ours. The kernels of either give the same elements and scales of all numbers but
NaN, which Transformer Engine leaves out of an amax (H200, docs/measurements/h200.md). MXFP8 was never tried.
"""

from nemo_vfm.core.optional import require

require("transformer_engine", purpose="precision.fp8.kernels=te")

from typing import Any

import torch
import transformer_engine.pytorch as te
from torch import Tensor
from transformer_engine.pytorch.cpp_extensions import general_gemm

from nemo_vfm.parallel.fp8.operands import Operands, share
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, factor_of

_DTYPES = {E4M3: te.DType.kFloat8E4M3, E5M2: te.DType.kFloat8E5M2}


class TeProducts(torch.autograd.Function):
    """(rows, K) and (N, K) to (rows, N)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, operands: Operands) -> Tensor:
        """X W^T."""
        ctx.operands, (needs_x, trained, _) = operands, ctx.needs_input_grad
        keeps_weight = operands.weight_is_copy and needs_x
        rows = _cast(x, "input", operands, turned=trained)
        by_row = _cast(weight, "weight", operands, turned=keeps_weight)
        product: Tensor = general_gemm(by_row, rows, out_dtype=x.dtype)[0]
        kept = _transposed_only(rows) if trained else None, _transposed_only(by_row) if keeps_weight else weight
        tensors, ctx.tensor_objects = te.prepare_for_saving(*kept)
        ctx.save_for_backward(*tensors)
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """dY W and dY^T X."""
        (grad,), operands = gradients, ctx.operands
        rows, weight = te.restore_from_func_ctx(ctx)
        grad = operands.whole_gradient(grad)
        by_row = _cast(grad, "gradient", operands, turned=rows is not None)
        grad_x = grad_w = None
        # A gradient's sums are split so that fewer bits are lost.
        long_sums = {"grad": True, "out_dtype": grad.dtype, "use_split_accumulator": True}
        if ctx.needs_input_grad[0]:
            if isinstance(weight, Tensor):
                weight = _cast(weight, "weight", operands, turned=True, count=False)
            grad_x = share(general_gemm(weight, by_row, layout="NN", **long_sums)[0], operands)
        if rows is not None:
            grad_w = share(general_gemm(rows, by_row, layout="NT", **long_sums)[0], operands)
        return grad_x, grad_w, None


def _transposed_only(quantised: Any) -> Any:
    """With the transposed copy alone."""
    quantised.update_usage(rowwise_usage=False, columnwise_usage=True)
    return quantised


def _cast(x: Tensor, role: str, operands: Operands, *, turned: bool = False, count: bool = True) -> Any:
    """An operand in Transformer Engine's form, with its transposed copy if asked.

    Args:
        count: what is lost of it, where somebody looks; an operand counts once a step.
    """
    x = x.contiguous()
    if count:
        operands.note(x, role)
    quantizer, amax = _quantizer(x, role, operands)
    quantizer.set_usage(rowwise=True, columnwise=turned)  # it makes no second copy without the first
    quantizer.internal = True
    found = quantizer.quantize(x)
    if operands.history is not None and operands.is_training and amax is not None:
        operands.history.see(role, amax[0])
    return found


def _quantizer(x: Tensor, role: str, operands: Operands) -> tuple[Any, Tensor | None]:
    """What quantises an operand by the recipe, and where it puts the amax that delayed scaling asks for."""
    spec, dtype = operands.spec, _DTYPES[operands.dtype(role)]
    if spec.recipe == "mxfp8":
        return te.MXFP8Quantizer(dtype), None
    if spec.recipe == "block":
        return te.Float8BlockQuantizer(
            dtype, rowwise=True, columnwise=True, force_pow_2_scales=spec.scales_are_pow2,
            block_scaling_dim=2 if role == "weight" else 1,
        ), None  # fmt: skip
    if operands.history is not None:
        factor = operands.history.factor_for(role, x.device)
    elif not operands.split.is_split(role):
        return te.Float8CurrentScalingQuantizer(dtype, x.device, force_pow_2_scales=spec.scales_are_pow2), None
    else:
        amax = operands.split.whole_amax(torch.linalg.vector_norm(x, torch.inf), role, "tensor")
        factor = factor_of(amax, operands.dtype(role), pow2=spec.scales_are_pow2)
    seen = torch.zeros(1, device=x.device)
    return te.Float8Quantizer(factor.reshape(1), seen, dtype), seen
