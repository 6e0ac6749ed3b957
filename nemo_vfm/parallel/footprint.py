# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Factories of a model and its optimizer in, how many bytes training keeps per device out; nothing is allocated."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from nemo_vfm.core.types import Factory

Params: TypeAlias = Iterable[nn.Parameter]
OptimizerFactory: TypeAlias = Factory[[Params], torch.optim.Optimizer]


def state_of(model: Factory[[], nn.Module], optimizer: OptimizerFactory) -> tuple[int, dict[str, int]]:
    """How many parameters there are, and the bytes of weights, gradients and optimizer on one device.

    The model is built on the meta device, where tensors have shapes but no memory: any size takes a second.
    """
    with torch.device("meta"):
        built = model()
    parameters = list(built.parameters())
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    states = {
        "weights": sum(map(_bytes, [*parameters, *built.buffers()])),
        "gradients": sum(map(_bytes, learning)),
        "optimizer": _optimizer_bytes(learning, optimizer),
    }
    return sum(parameter.numel() for parameter in parameters), states


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _optimizer_bytes(parameters: list[nn.Parameter], optimizer: OptimizerFactory) -> int:
    """What the optimizer keeps, found by one step on a parameter of six numbers for each dtype.

    A step on meta tensors would be simpler, but fused optimizers refuse that device.
    """
    samples = {dtype: _kept(dtype, optimizer) for dtype in {parameter.dtype for parameter in parameters}}
    return sum(parameter.numel() * per_number + fixed for parameter in parameters
               for per_number, fixed in [samples[parameter.dtype]])  # fmt: skip


def _kept(dtype: torch.dtype, optimizer: OptimizerFactory) -> tuple[int, int]:
    """(bytes for each number of a parameter, bytes for each parameter)."""
    parameter = nn.Parameter(torch.zeros(2, 3, dtype=dtype))
    made = optimizer([parameter])
    parameter.grad = torch.zeros_like(parameter)
    made.step()
    state: Mapping[str, object] = made.state[parameter]
    kept = [value for value in state.values() if isinstance(value, Tensor)]
    per_number = sum(tensor.element_size() for tensor in kept if tensor.shape == parameter.shape)
    return per_number, sum(_bytes(tensor) for tensor in kept if tensor.shape != parameter.shape)
