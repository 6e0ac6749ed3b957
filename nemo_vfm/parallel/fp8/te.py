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

from nemo_vfm.parallel.fp8.operands import Operands, divide_by_ranks
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, factor_of

_DTYPES = {E4M3: te.DType.kFloat8E4M3, E5M2: te.DType.kFloat8E5M2}


class TeProducts(torch.autograd.Function):
    """(rows, K) and (N, K) to (rows, N)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, operands: Operands) -> Tensor:
        """X W^T."""
        ctx.operands, (needs_x, trained, _) = operands, ctx.needs_input_grad
        keeps_weight = operands.weight_is_copy and needs_x
        x_fp8 = _cast(x, "input", operands, columnwise=trained)
        weight_fp8 = _cast(weight, "weight", operands, columnwise=keeps_weight)
        product: Tensor = general_gemm(weight_fp8, x_fp8, out_dtype=x.dtype)[0]
        kept = _columnwise_only(x_fp8) if trained else None, _columnwise_only(weight_fp8) if keeps_weight else weight
        tensors, ctx.tensor_objects = te.prepare_for_saving(*kept)
        ctx.save_for_backward(*tensors)
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """dY W and dY^T X."""
        (grad,), operands = gradients, ctx.operands
        x_fp8, weight = te.restore_from_func_ctx(ctx)
        grad = operands.reduce_gradient(grad)
        grad_fp8 = _cast(grad, "gradient", operands, columnwise=x_fp8 is not None)
        grad_x = grad_w = None
        # A gradient's sums are split so that fewer bits are lost.
        long_sums = {"grad": True, "out_dtype": grad.dtype, "use_split_accumulator": True}
        if ctx.needs_input_grad[0]:
            if isinstance(weight, Tensor):
                weight = _cast(weight, "weight", operands, columnwise=True, count=False)
            grad_x = divide_by_ranks(general_gemm(weight, grad_fp8, layout="NN", **long_sums)[0], operands)
        if x_fp8 is not None:
            grad_w = divide_by_ranks(general_gemm(x_fp8, grad_fp8, layout="NT", **long_sums)[0], operands)
        return grad_x, grad_w, None


def _columnwise_only(quantised: Any) -> Any:
    """With the transposed copy alone."""
    quantised.update_usage(rowwise_usage=False, columnwise_usage=True)
    return quantised


def _cast(x: Tensor, role: str, operands: Operands, *, columnwise: bool = False, count: bool = True) -> Any:
    """An operand in Transformer Engine's form.

    Args:
        columnwise: with its transposed copy.
        count: add what is lost of it to the stats, if there are any; an operand counts once a step.
    """
    x = x.contiguous()
    if count:
        operands.note(x, role)
    quantizer, amax = _quantizer(x, role, operands)
    quantizer.set_usage(rowwise=True, columnwise=columnwise)  # it makes no second copy without the first
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
        amax = operands.split.global_amax(torch.linalg.vector_norm(x, torch.inf), role, "tensor")
        factor = factor_of(amax, operands.dtype(role), pow2=spec.scales_are_pow2)
    seen = torch.zeros(1, device=x.device)
    return te.Float8Quantizer(factor.reshape(1), seen, dtype), seen
