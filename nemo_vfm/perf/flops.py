# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""What a model says it costs and how long it took in; FLOPs and the utilisation of the machine (MFU) out.

A multiply and an add count as two. Training counts each product three times: once forward and twice backward, for
the gradients of the inputs and of the weights. Arithmetic that is repeated to save memory does not count, so this is
model utilisation, not hardware utilisation.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nemo_vfm.core import device as devices
from nemo_vfm.core.types import Op

TRAINING_FACTOR = 3.0
FORMULA = "3 x forward FLOPs / seconds / peak"

#: Dense bf16 peaks in TFLOP/s without sparsity, by words of the device's name; NVIDIA's data sheets. First match wins.
DENSE_BF16_TFLOPS = {
    "GB200": 2500.0, "B200": 2250.0, "GH200": 989.4, "H200": 989.4, "H100 PCIe": 756.0, "H100 NVL": 835.0,
    "H100": 989.4, "H800": 989.4, "A100": 312.0, "A800": 312.0, "L40S": 362.05, "L40": 181.05, "L4": 121.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Peak:
    """The most the machine could do.

    Args:
        flops_per_s: FLOPs a second.
        source: where the number is from.
    """

    flops_per_s: float
    source: str

    def __str__(self) -> str:
        return f"{self.flops_per_s / 1e12:.4g} TFLOP/s ({self.source})"


def forward_flops(ops: Sequence[Op]) -> float:
    """FLOPs of one forward pass."""
    return sum(op.flops for op in ops)


def training_flops(ops: Sequence[Op]) -> float:
    """FLOPs of forward and backward."""
    return TRAINING_FACTOR * forward_flops(ops)


def mfu(flops: float, seconds: float, peak: Peak) -> float:
    """The share of the peak that was used, from 0 to 1.

    Raises:
        ValueError: no time has passed.
    """
    if seconds <= 0:
        raise ValueError(f"MFU over {seconds} s says nothing; measure at least one step")
    return flops / seconds / peak.flops_per_s


def peak_flops(name: str | None = None) -> Peak:
    """The peak of the device with this name; None takes this process's device.

    A GPU's is looked up; a CPU's, and an unknown GPU's, is the fastest fp32 matrix product measured now.
    """
    if name is None and devices.device().type == "cpu":
        return _measured("fp32 matrix product measured on this CPU")
    name = name or devices.describe()
    for part, tflops in DENSE_BF16_TFLOPS.items():
        if re.search(rf"\b{part}\b", name):  # whole words: L4 is not L40, nor H20 H200
            return Peak(tflops * 1e12, f"dense bf16, data sheet of {part}")
    return _measured(f"fp32 matrix product measured, since {name!r} is not in the table")


def _measured(source: str, size: int = 1024, rounds: int = 5) -> Peak:
    a, b = (torch.rand(size, size, device=devices.device()) for _ in range(2))
    seconds = min(_seconds(a, b) for _ in range(rounds + 1))
    return Peak(2.0 * size**3 / seconds, f"{source}, {size}^3, best of {rounds + 1}")


def _seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    devices.synchronize()
    begin = time.perf_counter()
    _ = a @ b
    devices.synchronize()
    return time.perf_counter() - begin
