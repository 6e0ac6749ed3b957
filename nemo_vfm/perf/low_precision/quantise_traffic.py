"""Counts the bytes that quantising a linear's operands moves through a GPU's memory.

A linear of M tokens, K inputs and N outputs quantises its input (M K) and its weight (K N) forward, and its output's
gradient (M N) and its weight again backward. Hopper multiplies in FP8 only where both operands are contiguous along the
sum, so the backward products also need the weight, and for the weight's gradient the input and the gradient, turned.
One pass makes both copies of an operand (`parallel/fp8/triton_casts.py`).
"""

from dataclasses import dataclass

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import Fp8, Recipe
from nemo_vfm.perf.communication import Passes
from nemo_vfm.perf.gpu_specs import Gpu

#: Bytes read of each bf16 number that is quantised, for its amax and for its cast; a block finds its amax in the cast.
READ: dict[Recipe, float] = {"delayed": 4, "current": 4, "rowwise": 4, "block": 2, "mxfp8": 2}
#: Of the speed of products with one scale: on an H200 it was 0.84 forward and for the input's gradient, 0.71 for the
#: weight's (docs/measurements/h200.md).
_BLOCKS_REACH = 0.8


@dataclass(frozen=True, slots=True)
class Casts:
    """How numbers get into FP8.

    Args:
        recipe: of the scales.
    """

    recipe: Recipe

    def operand(self, copies: int) -> float:
        """Bytes for each number of an operand, of which one copy or two are written."""
        return READ[self.recipe] + copies

    def linear(self, rows: float, inputs: float, outputs: float, *, learns: bool = True) -> Passes:
        """Bytes of a linear, forward and backward.

        Args:
            rows: M, tokens.
            inputs: K, its input features.
            outputs: N, its output features.
            learns: whether its weight has a gradient.
        """
        x, weight, y = rows * inputs, inputs * outputs, rows * outputs
        one, both = self.operand(1), self.operand(2 if learns else 1)
        return Passes(both * x + one * weight, both * y + one * weight)


def fp8_flops_per_s(gpu: Gpu, spec: Fp8) -> float:
    """The dense FP8 peak of a GPU.

    Raises:
        UserError: it has no products in FP8, or not by this recipe.
    """
    if gpu.fp8_tflops is None:
        raise UserError(
            f"{gpu.name} has no products in FP8, which begin with compute capability 8.9 (Ada, Hopper); plan with "
            f"precision=bf16, or for another GPU, such as --gpu h100"
        )
    if why := spec.unsupported(gpu.capability):
        raise UserError(f"{gpu.name}: {why}.")
    return gpu.fp8_tflops * 1e12 * (_BLOCKS_REACH if spec.recipe == "block" else 1)


def share_in_fp8(spec: Fp8, depth: int) -> float:
    """The share of a model's blocks that are in FP8, 0 to 1."""
    return max(0, depth - spec.first_bf16 - spec.last_bf16) / depth
