"""Counts a model's FLOPs and computes its utilisation of the machine (MFU) from the time they took.

A multiply and an add count as two. Training counts each product three times: once forward and twice backward, for the
gradients of the inputs and of the weights. A frozen model has no gradients of weights, so its linears count twice; the
products of its adapters, some percent, do not count. Arithmetic that is repeated to save memory does not count, so this
is model utilisation, not hardware utilisation. Half of the products in causal attention are masked. Whether they count
is a convention, on which published figures differ, so it is stated with every figure.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import torch

from nemo_vfm.core import device as devices
from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.perf.gpu_specs import GPUS

#: Of a model's arithmetic, what belongs to no block.
_OUTER = re.compile(r"output|patch embedding|text projection|image features")
Convention = Literal["full", "causal"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
TRAINING_FACTOR = 3.0
FROZEN_FACTOR = 2.0
FORMULA = "3 x forward FLOPs / seconds / peak"
FROZEN_FORMULA = "(2 x forward FLOPs of frozen linears + 3 x those of attention) / seconds / peak; adapters not counted"


@dataclass(frozen=True, slots=True)
class PeakFlops:
    """The most the machine could do."""

    flops_per_s: float  #: FLOPs a second
    source: str  #: where the number is from

    def __str__(self) -> str:
        return f"{self.flops_per_s / 1e12:.4g} TFLOP/s ({self.source})"


def forward_flops(ops: Sequence[Op], convention: Convention = "full") -> float:
    """FLOPs of one forward pass.

    Args:
        convention: full counts causal attention as if nothing were masked (Megatron-LM's papers, Nemotron-4); causal
            counts the half of it that is needed.
    """
    return sum(op.flops / 2 if op.causal and convention == "causal" else op.flops for op in ops)


def training_flops(ops: Sequence[Op], convention: Convention = "full", *, frozen: bool = False) -> float:
    """FLOPs of forward and backward; linears of a `frozen` model have no gradients of weights."""
    linear = FROZEN_FACTOR if frozen else TRAINING_FACTOR
    return sum((linear if op.kind == "linear" else TRAINING_FACTOR) * forward_flops([op], convention) for op in ops)


def recomputed_flops(ops: Sequence[Op], convention: Convention = "full") -> float:
    """FLOPs that a step repeats where each block runs again in backward; what is no block does not."""
    return forward_flops([op for op in ops if not _OUTER.search(op.name)], convention)


def formula(convention: Convention, *, frozen: bool = False) -> str:
    """How MFU is computed, to be shown beside it."""
    counted = {"full": "in full, including the masked half", "causal": "as the unmasked half"}[convention]
    first = FROZEN_FORMULA if frozen else FORMULA
    return f"{first}; causal attention is counted {counted}; recomputation is not counted"


def mfu(flops: float, seconds: float, peak: PeakFlops) -> float:
    """The share of the peak that was used, from 0 to 1.

    Raises:
        ValueError: no time has passed.
    """
    if seconds <= 0:
        raise ValueError(f"MFU over {seconds} s means nothing; measure at least one step")
    return flops / seconds / peak.flops_per_s


def peak_flops(name: str | None = None) -> PeakFlops:
    """The peak of the device with this name; None takes this process's device.

    A GPU's is looked up; a CPU's, and an unknown GPU's, is the fastest fp32 matrix product measured here.
    """
    if name is None and devices.device().type == "cpu":
        return _measure_peak("fp32 matrix product measured on this CPU")
    name = name or devices.describe()
    for gpu in GPUS:  # the first that fits: some names stand in others
        if re.search(rf"\b{gpu.words}\b", name):  # whole words: L4 is not L40, nor H20 H200
            return PeakFlops(gpu.flops_per_s, f"dense bf16, data sheet of {gpu.words}")
    return _measure_peak(f"fp32 matrix product measured, since {name!r} is not in the table")


@cache  # of one process
def _measure_peak(source: str, size: int = 1024, rounds: int = 5) -> PeakFlops:
    a, b = (torch.rand(size, size, device=devices.device()) for _ in range(2))
    seconds = []
    for _ in range(rounds + 1):
        devices.synchronize()
        begin = time.perf_counter()
        _ = a @ b
        devices.synchronize()
        seconds.append(time.perf_counter() - begin)
    return PeakFlops(2.0 * size**3 / min(seconds), f"{source}, {size}^3, best of {rounds + 1}")
