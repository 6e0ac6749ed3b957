"""Quantises a linear's operands, with scales shared across ranks where an operand is sharded.

`rowwise` and `columnwise` are Transformer Engine's words for the two forms of a matrix: as it is, for a product that
sums over its last dimension, and transposed, for one that sums over its first. The recipe `rowwise` is another matter:
a scale for each row.
"""

from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.optional import available
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.operand_stats import OperandStats
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Fp8Tensor, Granularity, quantise, quantise_by

#: (rows, columns) of an operand as it enters a product that sums over its columns.
_DIMS = {"input": ("tokens", "inputs"), "weight": ("outputs", "inputs"), "gradient": ("tokens", "outputs")}


@dataclass(frozen=True, slots=True)
class OperandSplit:
    """The process groups that split a linear's dimensions; None where a rank has the whole dimension."""

    tokens: dist.ProcessGroup | None = None  #: the context ranks
    inputs: dist.ProcessGroup | None = None  #: the tensor ranks of a row linear
    outputs: dist.ProcessGroup | None = None  #: those of a column linear

    def is_split(self, role: str) -> bool:
        """Whether this rank has only a part of an operand."""
        return any(getattr(self, dim) is not None for dim in _DIMS[role])

    def global_amax(self, amax: Tensor, role: str, granularity: Granularity, *, columnwise: bool = False) -> Tensor:
        """The amax of the whole operand, from that of this rank's part.

        The scale of a tensor is shared by the ranks that split either dimension; that of a row (or, columnwise, of a
        column) by those that split the dimension it runs along. A block lies on one rank.
        """
        if granularity not in ("tensor", "row"):
            return amax
        dims = reversed(_DIMS[role]) if columnwise else _DIMS[role]
        for dim in list(dims)[0 if granularity == "tensor" else 1 :]:
            amax = all_reduce_amax(amax, getattr(self, dim))
        return amax


def all_reduce_amax(amax: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The largest amax of the ranks of a group; NaN becomes infinity."""
    if group is None:
        return amax
    # A MAX all-reduce does not propagate NaN reliably.
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
    #: of delayed scaling; it sees the amax of this rank's part, which HistoryUpdater reduces over ranks after the step
    history: AmaxHistory | None = None
    split: OperandSplit = field(default_factory=OperandSplit)  #: the ranks that have other parts of them
    is_training: bool = True  #: whether the history records each amax
    stats: OperandStats | None = None  #: counts what quantisation loses; None counts nothing
    #: ranks that each hold the whole input but only a partial output gradient: the gradient is their sum
    partial_gradient: dist.ProcessGroup | None = None
    #: whether the weight is a temporary cast, freed after forward, so its quantised transpose is kept for backward.
    #: Otherwise backward has the weight, or gathers it again, and quantises it then
    weight_is_copy: bool = False

    def quantise_both_ways(
        self, x: Tensor, role: str, *, rowwise: bool = True, columnwise: bool = False
    ) -> tuple[Fp8Tensor | None, Fp8Tensor | None]:
        """A matrix for the product that sums over its last dimension, and its transpose for that over the first.

        Args:
            x: (M, K).
            role: input, weight or gradient.
            rowwise: make the first; else it is None.
            columnwise: make the second, (K, M); else it is None.
        """
        # The fused kernels make no MXFP8.
        make = self._quantise_fused if fuses(x) and self.spec.recipe != "mxfp8" else self._quantise_eager
        found = make(x, role, rowwise, columnwise)
        if self.stats is not None and found[0] is not None:
            self.stats.note(role, x, found[0])
        return found

    def note(self, x: Tensor, role: str) -> None:
        """Count what is lost of an operand that other kernels quantise."""
        if self.stats is not None:
            quantised = self._quantise_eager(x, role, True, False)[0]
            assert quantised is not None
            self.stats.note(role, x, quantised)

    def reduce_gradient(self, grad: Tensor) -> Tensor:
        """The output's gradient, summed over the ranks that have only a part of it each."""
        if self.partial_gradient is not None:
            grad = grad.contiguous().clone()
            dist.all_reduce(grad, group=self.partial_gradient)
        return grad

    def _quantise_fused(
        self, x: Tensor, role: str, rowwise: bool, columnwise: bool
    ) -> tuple[Fp8Tensor | None, Fp8Tensor | None]:
        """By Triton's kernels, where `fuses` says so."""
        from nemo_vfm.parallel.fp8.triton_casts import amax_of_rows, amax_of_tensor, cast

        x, granularity, factor = x.contiguous(), self._granularity(role), None
        amax: tuple[Tensor, Tensor] | None = None
        if self.history is not None:
            if self.is_training:
                self.history.see(role, amax_of_tensor(x))
            factor = self.history.factor_for(role, x.device)
        elif granularity == "tensor":
            amax = (self.split.global_amax(amax_of_tensor(x), role, granularity),) * 2
        elif granularity == "row":
            rows, columns = amax_of_rows(x)
            rows = self.split.global_amax(rows, role, granularity) if rowwise else rows
            columns = self.split.global_amax(columns, role, granularity, columnwise=True) if columnwise else columns
            amax = rows, columns
        return cast(
            x, granularity, self.dtype(role), amax, factor=factor, pow2=self.spec.scales_are_pow2,
            rowwise=rowwise, columnwise=columnwise,
        )  # fmt: skip

    def _quantise_eager(
        self, x: Tensor, role: str, rowwise: bool, columnwise: bool
    ) -> tuple[Fp8Tensor | None, Fp8Tensor | None]:
        """By plain PyTorch operators, on any device."""
        same = self._granularity(role) in ("tensor", "128x128")  # the transpose has the same scales
        first = None
        if rowwise or same:
            if self.history is None:
                first = self._quantise(x, role, columnwise=False)
            else:
                if self.is_training:
                    self.history.see(role, x.detach().abs().max())
                first = quantise_by(x, self.history.factor_for(role, x.device), self.dtype(role))
        second = None
        if columnwise and first is not None and same:
            second = Fp8Tensor(first.elements.T, first.scale.T if first.scale.dim() else first.scale)
        elif columnwise:
            second = self._quantise(x.T, role, columnwise=True)
        return first if rowwise else None, second

    def _quantise(self, x: Tensor, role: str, *, columnwise: bool) -> Fp8Tensor:
        granularity = self._granularity(role)
        global_amax = partial(self.split.global_amax, role=role, granularity=granularity, columnwise=columnwise)
        return quantise(x, granularity, self.dtype(role), pow2=self.spec.scales_are_pow2, whole=global_amax)

    def _granularity(self, role: str) -> Granularity:
        return "128x128" if self.spec.recipe == "block" and role == "weight" else _GRANULARITY[self.spec.recipe]

    def dtype(self, role: str) -> torch.dtype:
        """The dtype of an operand's elements."""
        return E5M2 if role == "gradient" and self.spec.gradients_in_e5m2 else E4M3


def fuses(x: Tensor) -> bool:
    """Whether Triton quantises a matrix; its kernels are right for bf16 alone."""
    return _TRITON and x.is_cuda and x.dtype == torch.bfloat16


def divide_by_ranks(whole: Tensor, operands: Operands) -> Tensor:
    """Each rank of `partial_gradient` has the whole result; divide so that the later sum over ranks gives it once."""
    ranks = operands.partial_gradient
    return whole if ranks is None else whole / ranks.size()
