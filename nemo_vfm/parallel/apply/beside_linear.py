# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Splits what stands beside a split linear, such as an adapter, over the same tensor ranks.

A column linear gives each rank some outputs, a row linear takes some inputs. What stands beside has two matrices, of
which the one on the split side is split, and the narrow tensor between them is gathered or summed.
Shape letters: B batch, S tokens, R rank of the adapter.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: The child of a linear that stands beside it.
BESIDE = "adapters"


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """How a linear is split.

    Args:
        kind: column or row.
        devices: the tensor ranks.
        tokens: whether each rank has some tokens of what enters a column linear or leaves a row linear.
    """

    kind: Literal["column", "row"]
    devices: "DeviceMesh"
    tokens: bool

    def part(self, parameter: nn.Parameter, dim: int) -> nn.Parameter:
        """This rank's part of a parameter, along a dimension."""
        from torch.distributed.tensor import Shard, distribute_tensor

        split = distribute_tensor(parameter, self.devices, [Shard(dim)], src_data_rank=None)
        return nn.Parameter(split, requires_grad=parameter.requires_grad)

    def whole(self, h_BSR: Tensor) -> Tensor:
        """The narrow tensor as the second matrix takes it."""
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        tokens = Shard(h_BSR.ndim - 2)
        if self.kind == "row":
            there = DTensor.from_local(h_BSR, self.devices, [Partial()], run_check=False)
            summed: Any = there.redistribute(placements=[tokens if self.tokens else Replicate()])
            return summed.to_local()  # type: ignore[no-any-return]
        here = DTensor.from_local(h_BSR, self.devices, [tokens if self.tokens else Replicate()], run_check=False)
        # Each rank has other outputs, and so a part of the gradient.
        return here.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])

    @torch.no_grad()
    def summed(self, part: Tensor) -> Tensor:
        """The sum over the ranks, where the inputs of a row linear are split; else as it is."""
        if self.kind == "column":
            return part
        whole = part.contiguous()
        torch.distributed.all_reduce(whole, group=self.devices.get_group())
        return whole


@runtime_checkable
class BesideLinear(Protocol):
    """What may stand beside a linear."""

    def split(self, how: TensorSplit) -> None:
        """Keep this rank's part."""
        ...


@contextmanager
def set_apart(model: nn.Module) -> Iterator[dict[str, nn.Module]]:
    """What stands beside linears, by their names, and not there inside: splitting a linear splits its children, too."""
    found = {name: module for name, module in model.named_modules() if BESIDE in module._modules}
    beside = {name: module._modules.pop(BESIDE) for name, module in found.items()}
    yield {name: one for name, one in beside.items() if one is not None}
    for name, module in found.items():
        module._modules[BESIDE] = beside[name]


def is_adapter(name: str) -> bool:
    """Whether a parameter is of what stands beside a linear."""
    return f".{BESIDE}." in name
