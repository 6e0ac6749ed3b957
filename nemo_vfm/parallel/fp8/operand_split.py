"""Tells over which ranks the operands of a linear are split, so that scales are those of the whole tensors."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_vfm.parallel.fp8.quantise import Granularity

#: (rows, columns) of an operand as it enters a product that sums over its columns.
_DIMS = {"input": ("tokens", "inputs"), "weight": ("outputs", "inputs"), "gradient": ("tokens", "outputs")}


@dataclass(frozen=True, slots=True)
class OperandSplit:
    """The process groups that split a linear's dimensions; None where this rank has all of one.

    Args:
        tokens: the context ranks.
        inputs: the tensor ranks of a row linear.
        outputs: those of a column linear.
    """

    tokens: dist.ProcessGroup | None = None
    inputs: dist.ProcessGroup | None = None
    outputs: dist.ProcessGroup | None = None

    def is_split(self, role: str) -> bool:
        """Whether this rank has a part of an operand."""
        return any(getattr(self, dim) is not None for dim in _DIMS[role])

    def whole_amax(self, amax: Tensor, role: str, granularity: Granularity, *, turned: bool = False) -> Tensor:
        """The amax of the whole operand, from that of this rank's part.

        One scale for a tensor is shared by the ranks of both dimensions, one for a row by those of the columns; a block
        lies on one rank.

        Args:
            amax: of this rank's part.
            role: input, weight or gradient.
            granularity: what shares a scale.
            turned: the operand is transposed, for a product that sums over its rows.
        """
        if granularity not in ("tensor", "row"):
            return amax
        dims = reversed(_DIMS[role]) if turned else _DIMS[role]
        for dim in list(dims)[0 if granularity == "tensor" else 1 :]:
            amax = largest(amax, getattr(self, dim))
        return amax


def largest(amax: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The largest over the ranks of a group. NaN counts as infinity: which of two ranks' maxima wins is not defined."""
    if group is None:
        return amax
    amax = torch.nan_to_num(amax, nan=torch.inf, posinf=torch.inf)
    dist.all_reduce(amax, dist.ReduceOp.MAX, group=group)
    return amax
