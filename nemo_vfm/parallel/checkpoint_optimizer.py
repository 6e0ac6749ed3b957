# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""An optimizer's state in, tensors as `parameter name/key` out, each in its parameter's layout; and back."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.parallel import checkpoint_pieces as pieces
from nemo_vfm.parallel.checkpoint_ranks import ALONE, exchange, together
from nemo_vfm.parallel.checkpoint_reader import SavedTensors, some
from nemo_vfm.parallel.gather import Gather


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of every parameter. What has the shape of a rank's part of a parameter is taken for a part, too."""
    return {
        f"{name}/{key}": pieces.in_layout_of(torch.as_tensor(value), parameter)
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for key, value in optimizer.state[parameter].items()
    }


def restore(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Tensor], ranks: Gather = ALONE,
    device: torch.device | None = None, parts: bool = False,
) -> None:  # fmt: skip
    """Put saved state back, each rank its part; every rank must call it.

    Args:
        device: where the state lies; None takes that of each parameter.
        parts: give the optimizer plain tensors, this rank's parts alone.

    Raises:
        CorruptCheckpoint: there is state for a parameter that no rank has.
    """
    own = dict(model.named_parameters())
    known = {name for names in exchange(ranks, list(own)) for name in names}
    if unknown := sorted({name.rpartition("/")[0] for name in saved} - known):
        raise CorruptCheckpoint(
            f"The checkpoint has optimizer state for {some(unknown)!r}; this model has no such parameter."
        )
    optimizer.state.clear()
    together(ranks, lambda: _restore(own, optimizer, saved, device, parts))


def _restore(
    own: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, saved: Mapping[str, Tensor],
    device: torch.device | None, parts: bool,
) -> None:  # fmt: skip
    for name in saved:
        parameter, _, key = name.rpartition("/")
        if parameter in own:
            value = _value(saved, name, own[parameter], device)
            optimizer.state[own[parameter]][key] = pieces.local(value) if parts else value


def _value(saved: Mapping[str, Tensor], name: str, parameter: Tensor, device: torch.device | None) -> Any:
    """A tensor of its own, never shared: a step count that parameters shared would advance once for each of them."""
    device = device or pieces.local(parameter).device
    if isinstance(saved, SavedTensors) and saved.shape(name) == tuple(parameter.shape) and parameter.dim():
        value = pieces.zeros_like(parameter, saved.dtype(name), device)
        saved.into(name, value)
        return value
    value = saved[name]
    # AdamW keeps its step count on the CPU, the moments beside the parameter.
    return value.clone() if value.dim() == 0 else value.to(device, copy=True)
