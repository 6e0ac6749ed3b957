"""Computes what products in FP8 cost and save: bytes that quantising moves, speed, and the width from which they pay.

A linear of M tokens, K inputs and N outputs quantises its input (M K) and its weight (K N) forward, and its output's
gradient (M N) and its weight again backward. Hopper multiplies in FP8 only where both operands are contiguous along the
sum, so the backward products also need the weight, and for the weight's gradient the input and the gradient, turned.
One pass makes both copies of an operand (`parallel/fp8/triton_casts.py`).

A training step of a square linear of width K on M tokens multiplies 6 M K^2 times. With the shares s of the peaks P
that products reach, and c bytes that casts move through memory of B bytes a second, FP8 is quicker where

    6 M K^2 / (s16 P16)  >  6 M K^2 / (s8 P8) + c (M, K) / B

Casts grow with M K and K^2, products with M K^2: so there is a width from which it holds, if there are tokens enough.
"""

from bisect import bisect_left

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import DIVISOR, Fp8, Recipe
from nemo_vfm.perf.communication import Passes
from nemo_vfm.perf.gpu_specs import GpuSpec, PublishedConstants

#: Bytes read of each bf16 number that is quantised, for its amax and for its cast; a block finds its amax in the cast.
READ: dict[Recipe, float] = {"delayed": 4, "current": 4, "rowwise": 4, "block": 2, "mxfp8": 2}
#: Of the speed of products with one scale: on an H200 it was 0.84 forward and for the input's gradient, 0.71 for the
#: weight's (docs/measurements/h200.md).
_BLOCKS_REACH = 0.8


def cast_bytes(recipe: Recipe, rows: float, inputs: float, outputs: float, *, learns: bool = True) -> Passes:
    """Bytes that casts of a linear into FP8 move, forward and backward.

    It has M rows (tokens), K inputs and N outputs, and where it `learns` a gradient of its weight.
    """
    x, weight, y = rows * inputs, inputs * outputs, rows * outputs
    one, both = READ[recipe] + 1, READ[recipe] + (2 if learns else 1)  # of copies that are written
    return Passes(both * x + one * weight, both * y + one * weight)


def fp8_flops_per_s(gpu: GpuSpec, spec: Fp8) -> float:
    """The dense FP8 peak of a GPU."""
    if gpu.fp8_tflops is None:
        raise UserError(
            f"{gpu.name} has no products in FP8, which begin with compute capability 8.9 (Ada, Hopper); plan with "
            f"precision=bf16, or for another GPU, such as --gpu h100"
        )
    if why := spec.objection_to(gpu.capability):
        raise UserError(f"{gpu.name}: {why}.")
    return gpu.fp8_tflops * 1e12 * (_BLOCKS_REACH if spec.recipe == "block" else 1)


def share_in_fp8(spec: Fp8, depth: int) -> float:
    """The share of a model's blocks that are in FP8, 0 to 1."""
    return max(0, depth - spec.first_bf16 - spec.last_bf16) / depth


_WIDEST = 65_536


def fp8_speedup(gpu: GpuSpec, spec: Fp8, tokens: int, width: int) -> float:
    """Seconds in bf16 over those in FP8, forward and backward, of a linear with `width` inputs and outputs.

    `tokens` are those of a microbatch on one device.
    """
    kernels, sides = PublishedConstants(), (tokens, width, width)
    flops, moved = 6.0 * tokens * width**2, cast_bytes(spec.recipe, *sides)
    products = flops / (fp8_flops_per_s(gpu, spec) * kernels.linear_fp8(*sides))
    casts = (moved.forward + moved.backward) / gpu.bytes_per_s
    return flops / (gpu.flops_per_s * kernels.linear(*sides)) / (products + casts)


def fp8_pays_from(gpu: GpuSpec, spec: Fp8, tokens: int) -> int | None:
    """The smallest width from which FP8 is quicker; None where it is at no width up to 65,536.

    Raises:
        UserError: the GPU has no products in FP8.
    """
    step = DIVISOR[spec.recipe]
    widths = range(step, _WIDEST + 1, step)
    # The ratio only grows with the width.
    place = bisect_left(widths, True, key=lambda width: fp8_speedup(gpu, spec, tokens, width) > 1)
    return widths[place] if place < len(widths) else None
