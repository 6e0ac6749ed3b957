"""Quantises the operands of a linear's products, by the scales of the whole tensors where ranks have parts of them."""

from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.optional import available
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.operand_stats import OperandStats
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Granularity, Quantised, quantise, quantise_by

#: (rows, columns) of an operand as it enters a product that sums over its columns.
_DIMS = {"input": ("tokens", "inputs"), "weight": ("outputs", "inputs"), "gradient": ("tokens", "outputs")}


@dataclass(frozen=True, slots=True)
class OperandSplit:
    """The process groups that split a linear's dimensions; None where this rank has all of one."""

    tokens: dist.ProcessGroup | None = None  #: the context ranks
    inputs: dist.ProcessGroup | None = None  #: the tensor ranks of a row linear
    outputs: dist.ProcessGroup | None = None  #: those of a column linear

    def is_split(self, role: str) -> bool:
        """Whether this rank has a part of an operand."""
        return any(getattr(self, dim) is not None for dim in _DIMS[role])

    def whole_amax(self, amax: Tensor, role: str, granularity: Granularity, *, turned: bool = False) -> Tensor:
        """The amax of the whole operand, from that of this rank's part; `turned` for a product that sums over rows.

        One scale for a tensor is shared by the ranks of both dimensions, one for a row by those of the columns; a block
        lies on one rank.
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


_GRANULARITY: dict[str, Granularity] = {
    "current": "tensor", "delayed": "tensor", "rowwise": "row", "block": "1x128", "mxfp8": "mx",
}  # fmt: skip
_TRITON = available("triton")


@dataclass(frozen=True, slots=True)
class Operands:
    """How a linear's operands are quantised."""

    spec: Fp8  #: the recipe
    history: AmaxHistory | None = None  #: of delayed scaling
    split: OperandSplit = field(default_factory=OperandSplit)  #: the ranks that have other parts of them
    is_training: bool = True  #: whether the history notes what it sees
    stats: OperandStats | None = None  #: counts what is lost; None where nobody looks
    #: ranks that have the whole input each, and a part of the sum that is the output's gradient
    partial_gradient: dist.ProcessGroup | None = None
    #: of the weight, which is freed with the forward pass; else it is there for backward anyway, or its ranks gather it
    #: again
    weight_is_copy: bool = False

    def copies(
        self, x: Tensor, role: str, *, by_row: bool = True, turned: bool = False
    ) -> tuple[Quantised | None, Quantised | None]:
        """A matrix for the product that sums over its last dimension, and its transpose for that over the first."""
        make = self._quantise_fused if fuses(x) and self.spec.recipe != "mxfp8" else self._apart
        found = make(x, role, by_row, turned)
        if self.stats is not None and found[0] is not None:
            self.stats.note(role, x, found[0])
        return found

    def note(self, x: Tensor, role: str) -> None:
        """Count what is lost of an operand that other kernels quantise."""
        if self.stats is not None:
            self.stats.note(role, x, require_made(self._apart(x, role, True, False)[0]))

    def whole_gradient(self, grad: Tensor) -> Tensor:
        """The output's gradient, summed where ranks have parts of the sum."""
        if self.partial_gradient is not None:
            grad = grad.contiguous().clone()
            dist.all_reduce(grad, group=self.partial_gradient)
        return grad

    def _quantise_fused(
        self, x: Tensor, role: str, by_row: bool, turned: bool
    ) -> tuple[Quantised | None, Quantised | None]:
        from nemo_vfm.parallel.fp8.triton_casts import amax_of_rows, amax_of_tensor, cast

        x, granularity, factor = x.contiguous(), self._granularity(role), None
        amax: tuple[Tensor, Tensor] | None = None
        if self.history is not None:
            if self.is_training:
                self.history.see(role, amax_of_tensor(x))
            factor = self.history.factor_for(role, x.device)
        elif granularity == "tensor":
            amax = (self.split.whole_amax(amax_of_tensor(x), role, granularity),) * 2
        elif granularity == "row":
            rows, columns = amax_of_rows(x)
            rows = self.split.whole_amax(rows, role, granularity) if by_row else rows
            amax = rows, self.split.whole_amax(columns, role, granularity, turned=True) if turned else columns
        return cast(
            x, granularity, self.dtype(role), amax, factor=factor, pow2=self.spec.scales_are_pow2, by_row=by_row,
            turned=turned,
        )  # fmt: skip

    def _apart(self, x: Tensor, role: str, by_row: bool, turned: bool) -> tuple[Quantised | None, Quantised | None]:
        """By torch's operators, on any device."""
        same = self._granularity(role) in ("tensor", "128x128")  # both copies have the same scales
        first = None
        if by_row or same:
            if self.history is None:
                first = self._quantise(x, role, turned=False)
            else:
                if self.is_training:
                    self.history.see(role, x.detach().abs().max())
                first = quantise_by(x, self.history.factor_for(role, x.device), self.dtype(role))
        second = None
        if turned and first is not None and same:
            second = Quantised(first.elements.T, first.scale.T if first.scale.dim() else first.scale)
        elif turned:
            second = self._quantise(x.T, role, turned=True)
        return first if by_row else None, second

    def _quantise(self, x: Tensor, role: str, *, turned: bool) -> Quantised:
        granularity = self._granularity(role)
        whole = partial(self.split.whole_amax, role=role, granularity=granularity, turned=turned)
        return quantise(x, granularity, self.dtype(role), pow2=self.spec.scales_are_pow2, whole=whole)

    def _granularity(self, role: str) -> Granularity:
        return "128x128" if self.spec.recipe == "block" and role == "weight" else _GRANULARITY[self.spec.recipe]

    def dtype(self, role: str) -> torch.dtype:
        """Of an operand's elements."""
        return E5M2 if role == "gradient" and self.spec.gradients_in_e5m2 else E4M3


def require_made(copy: Quantised | None) -> Quantised:
    """The copy that was asked for."""
    assert copy is not None
    return copy


def fuses(x: Tensor) -> bool:
    """Whether Triton quantises a matrix; its kernels are right for bf16 alone."""
    return _TRITON and x.is_cuda and x.dtype == torch.bfloat16


def share(whole: Tensor, operands: Operands) -> Tensor:
    """What a rank gives of a sum that each of some ranks has computed whole."""
    ranks = operands.partial_gradient
    return whole if ranks is None else whole / ranks.size()
