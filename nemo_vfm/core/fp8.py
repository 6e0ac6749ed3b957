"""Declares how a training computes its linears in FP8."""

from dataclasses import dataclass
from typing import Literal

from nemo_vfm.core.optional import needs_packages

Recipe = Literal["delayed", "current", "rowwise", "block", "mxfp8"]
RECIPES: tuple[Recipe, ...] = ("delayed", "current", "rowwise", "block", "mxfp8")
#: What the sizes of a product must be divisible by: features in and out, and tokens of a micro-batch.
DIVISOR: dict[Recipe, int] = {"delayed": 16, "current": 16, "rowwise": 16, "block": 128, "mxfp8": 32}


@needs_packages("transformer_engine", where={"kernels": "te"}, on_gpu=True)
@dataclass(frozen=True, slots=True)
class Fp8:
    """Linears in FP8, their sums in float32; weights and the optimizer stay as they are.

    Args:
        recipe: delayed takes its scales from the amax of earlier steps; current from each tensor's own; rowwise has one
            for each row; block one for each 1 x 128 of activations and gradients and each 128 x 128 of weights; mxfp8
            one, a power of two, for each 32.
        format: hybrid has gradients in E5M2 and all else in E4M3; None is hybrid, but e4m3 for block and mxfp8.
        first_bf16: this many first blocks of the model are not in FP8.
        last_bf16: this many last ones.
        history: steps whose amax delayed looks back on.
        margin: delayed leaves room for numbers 2^margin times as large.
        pow2: scales are powers of two; None takes the usual: for block and mxfp8.
        attention: the products of attention, too, when sampling.
        kernels: on a GPU, torch has its products and casts by Triton; te has both from Transformer Engine, with the
            same numbers but where a tensor has NaN. A CPU emulates either.

    Raises:
        ValueError: these do not go together.
    """

    recipe: Recipe = "current"
    format: Literal["hybrid", "e4m3"] | None = None
    first_bf16: int = 0
    last_bf16: int = 0
    history: int = 1024
    margin: int = 0
    pow2: bool | None = None
    attention: bool = False
    kernels: Literal["torch", "te"] = "torch"

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {self.recipe!r}")
        if self.format not in ("hybrid", "e4m3", None):
            raise ValueError(f"format must be hybrid, e4m3 or null, got {self.format!r}")
        if self.first_bf16 < 0 or self.last_bf16 < 0 or self.history < 1:
            raise ValueError(
                f"first_bf16 ({self.first_bf16}) and last_bf16 ({self.last_bf16}) must be at least 0, "
                f"history ({self.history}) at least 1"
            )
        if self.recipe == "delayed" and (self.first_bf16 or self.last_bf16):
            raise ValueError("delayed scaling cannot keep blocks in bf16 in Megatron-Core; use recipe=current, or "
                             "leave out first_bf16 and last_bf16")  # fmt: skip
        if self.recipe != "delayed" and self.margin:
            raise ValueError(f"margin is for recipe=delayed, got {self.margin} for {self.recipe}")
        if self.kernels not in ("torch", "te"):
            raise ValueError(f"kernels must be torch or te, got {self.kernels!r}")
        if self.kernels == "te" and self.recipe == "rowwise":
            raise ValueError("Transformer Engine has no row scales; use kernels=torch, or recipe=current")
        if self.recipe == "mxfp8" and self.pow2 is False:
            raise ValueError("the scales of mxfp8 are powers of two; leave pow2 out")

    def objection_to(self, capability: tuple[int, int]) -> str | None:
        """Why a GPU of this compute capability (major, minor) cannot compute so, and what it can; None where it can."""
        here = f"this GPU's compute capability is {capability[0]}.{capability[1]}"
        if capability < (8, 9):
            return f"FP8 needs compute capability 8.9 or newer (Ada, Hopper), but {here}; use precision=bf16"
        instead = f"use precision.fp8.recipe={'rowwise, or current' if self.kernels == 'torch' else 'current'}"
        if self.recipe == "mxfp8" and not (10, 0) <= capability < (12, 0):
            return f"MXFP8 needs compute capability 10.0 to 11 (Blackwell), but {here}; {instead}"
        if self.recipe == "mxfp8" and self.kernels == "torch":
            return f"matmuls of recipe=mxfp8 are still emulated, which is slow on a GPU; {instead}, or fp8.kernels=te"
        if self.recipe == "block" and capability != (9, 0):
            return f"block scales need compute capability 9.0 (Hopper), but {here}; {instead}"
        if self.recipe == "block" and self.gradients_in_e5m2:
            return "block scales have hardware only for E4M3; leave precision.fp8.format out"
        return None

    @property
    def gradients_in_e5m2(self) -> bool:
        """Whether gradients have the wider range."""
        return (self.format or ("e4m3" if self.recipe in ("block", "mxfp8") else "hybrid")) == "hybrid"

    @property
    def scales_are_pow2(self) -> bool:
        """Whether every scale is a power of two."""
        return self.recipe in ("block", "mxfp8") if self.pow2 is None else self.pow2
