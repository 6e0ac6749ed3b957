"""Finds the width from which a linear in FP8 is quicker than in bf16.

A training step of a square linear of width K on M tokens multiplies 6 M K^2 times. With the shares s of the peaks P
that products reach, and c bytes that casts move through memory of B bytes a second, FP8 is quicker where

    6 M K^2 / (s16 P16)  >  6 M K^2 / (s8 P8) + c (M, K) / B

Casts grow with M K and K^2, products with M K^2: so there is a width from which it holds, if there are tokens enough.
"""

from nemo_vfm.core.fp8 import DIVISOR, Fp8
from nemo_vfm.perf.gpu_specs import Gpu
from nemo_vfm.perf.kernels import Kernels, Published
from nemo_vfm.perf.low_precision.quantise_traffic import Casts, fp8_flops_per_s

_WIDEST = 65_536


def fp8_speedup(gpu: Gpu, spec: Fp8, tokens: int, width: int, *, kernels: Kernels | None = None) -> float:
    """Seconds of a square linear in bf16 over those in FP8, forward and backward.

    Args:
        gpu: that multiplies.
        spec: of FP8.
        tokens: of a microbatch on one device.
        width: inputs and outputs of the linear.
        kernels: shares of the peaks; None takes the published ones.

    Raises:
        UserError: the GPU has no products in FP8.
    """
    reached, sides = kernels or Published(), (tokens, width, width)
    flops, moved = 6.0 * tokens * width**2, Casts(spec.recipe).linear(*sides)
    products = flops / (fp8_flops_per_s(gpu, spec) * reached.linear_fp8(*sides))
    casts = (moved.forward + moved.backward) / gpu.bytes_per_s
    return flops / (gpu.flops_per_s * reached.linear(*sides)) / (products + casts)


def fp8_pays_from(gpu: Gpu, spec: Fp8, tokens: int, *, kernels: Kernels | None = None) -> int | None:
    """The smallest width from which FP8 is quicker; None where it is at no width up to 65,536.

    Args:
        gpu, spec, tokens, kernels: see `fp8_speedup`.

    Raises:
        UserError: the GPU has no products in FP8.
    """
    step = DIVISOR[spec.recipe]
    low, high = 0, _WIDEST // step

    def pays(number: int) -> bool:
        return fp8_speedup(gpu, spec, tokens, number * step, kernels=kernels) > 1

    if not pays(high):
        return None
    while high - low > 1:  # the ratio only grows with the width
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high * step
