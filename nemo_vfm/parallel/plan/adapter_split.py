"""Shards a linear's adapters over the same tensor-parallel ranks as the linear.

A column-parallel linear splits its outputs, a row-parallel linear its inputs. Of an adapter's two matrices, the one on
the split side is sharded; the low-rank activation between them is gathered or reduced.
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

#: Name of the child module that holds a linear's adapters.
ADAPTERS = "adapters"


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """How tensor parallelism splits a linear."""

    kind: Literal["column", "row"]  #: column or row
    devices: "DeviceMesh"  #: mesh of the tensor ranks
    #: sequence parallelism: the input of a column linear, or the output of a row linear, is split by tokens
    tokens: bool

    def part(self, parameter: nn.Parameter, dim: int) -> nn.Parameter:
        """Return this rank's shard of a parameter along a dimension."""
        from torch.distributed.tensor import Shard, distribute_tensor

        split = distribute_tensor(parameter, self.devices, [Shard(dim)], src_data_rank=None)
        return nn.Parameter(split, requires_grad=parameter.requires_grad)

    def redistribute(self, h_BSR: Tensor) -> Tensor:
        """Gather or reduce the low-rank activation into the input of the second matrix."""
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        tokens = Shard(h_BSR.ndim - 2)
        if self.kind == "row":
            partial = DTensor.from_local(h_BSR, self.devices, [Partial()], run_check=False)
            summed: Any = partial.redistribute(placements=[tokens if self.tokens else Replicate()])
            return summed.to_local()  # type: ignore[no-any-return]
        split = DTensor.from_local(h_BSR, self.devices, [tokens if self.tokens else Replicate()], run_check=False)
        # Each rank computes other outputs, so its gradient is a partial sum.
        return split.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])

    @torch.no_grad()
    def reduce(self, part: Tensor) -> Tensor:
        """Sum over the ranks for a row linear, whose inputs are split; a column linear needs no sum."""
        if self.kind == "column":
            return part
        total = part.contiguous()
        torch.distributed.all_reduce(total, group=self.devices.get_group())
        return total


@runtime_checkable
class ShardableAdapter(Protocol):
    """A child module of a linear that is sharded with it, such as its adapters."""

    def split(self, how: TensorSplit) -> None:
        """Keep this rank's shard of every parameter."""
        ...

    def require_divisible(self, ranks: int) -> None:
        """Raise UserError if so many tensor ranks cannot share it."""
        ...


@contextmanager
def set_apart(model: nn.Module) -> Iterator[dict[str, nn.Module]]:
    """Detach adapters inside the `with` block, where splitting a linear would split its children; yield them."""
    found = {name: module for name, module in model.named_modules() if ADAPTERS in module._modules}
    adapters = {name: module._modules.pop(ADAPTERS) for name, module in found.items()}
    try:
        yield {name: one for name, one in adapters.items() if one is not None}
    finally:
        for name, module in found.items():
            module._modules[ADAPTERS] = adapters[name]


def is_adapter(name: str) -> bool:
    """Return whether a parameter's name is that of an adapter's parameter."""
    return f".{ADAPTERS}." in name
