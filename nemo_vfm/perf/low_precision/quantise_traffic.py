# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes that quantising a linear's operands moves through a GPU's memory.

A linear of M tokens, K inputs and N outputs quantises its input (M K) and its weight (K N) forward, and its output's
gradient (M N) and its weight again backward. Hopper multiplies in FP8 only where both operands are contiguous along the
sum, so the backward products also need the weight, and for the weight's gradient the input and the gradient, turned.
"""

from dataclasses import dataclass

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import Fp8, Recipe
from nemo_vfm.perf.communication import Passes
from nemo_vfm.perf.gpu_specs import Gpu

#: Bytes read and written for each bf16 number that is quantised, by one kernel for the amax (2) and one for the cast
#: (2 + 1); delayed scaling knows its factor, and does both at once.
FUSED: dict[Recipe, float] = {"delayed": 3, "current": 5, "rowwise": 5}
#: The same where every operation of `parallel/fp8/quantise.py` is a kernel of its own, as without `engine.compile`.
EAGER: dict[Recipe, float] = {"delayed": 33, "current": 39, "rowwise": 39}
_TURNED = 2  # read and written of a transposed copy of elements


@dataclass(frozen=True, slots=True)
class Casts:
    """How numbers get into FP8.

    Args:
        recipe: of the scales.
        fused: whether a cast is one or two kernels, as compiled; else every operation is one.
    """

    recipe: Recipe
    fused: bool = True

    @property
    def cast(self) -> float:
        """Bytes for each number that is quantised."""
        return (FUSED if self.fused else EAGER)[self.recipe]

    @property
    def turned(self) -> float:
        """Bytes for each number of a turned operand: scales of rows do not turn, so it is quantised anew."""
        return self.cast if self.recipe == "rowwise" else _TURNED

    def linear(self, rows: float, inputs: float, outputs: float, *, learns: bool = True) -> Passes:
        """Bytes of a linear, forward and backward.

        Args:
            rows: M, tokens.
            inputs: K, its input features.
            outputs: N, its output features.
            learns: whether its weight has a gradient.
        """
        x, weight, y = rows * inputs, inputs * outputs, rows * outputs
        forward = self.cast * (x + weight)
        backward = self.cast * (y + weight) + self.turned * weight
        return Passes(forward, backward + (self.turned * (x + y) if learns else 0))


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
    if spec.recipe not in FUSED:
        raise UserError(
            f"products by recipe={spec.recipe} are emulated in fp32 on every GPU, so nothing is gained by them; plan "
            f"with precision.fp8.recipe={', '.join(FUSED)}"
        )
    return gpu.fp8_tflops * 1e12


def share_in_fp8(spec: Fp8, depth: int) -> float:
    """The share of a model's blocks that are in FP8, 0 to 1."""
    return max(0, depth - spec.first_bf16 - spec.last_bf16) / depth
