"""Looks up the rows of many features at once; its backward keeps the gradients of the bags, not of the rows.

Shape letters: B samples of a feature, N values, G bags, D width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.row_kernels import sum_bags
from nemo_vfm.sparse.tables.row_storage import RowStorage
from nemo_vfm.sparse.tables.touched_rows import PendingGradient


@dataclass(frozen=True)
class FeatureLookup:
    """A feature to look up."""

    feature: str  #: its name
    number: int  #: in its storage, in the order of the tables
    table: str  #: the name of its table
    pooling: str  #: of its table
    jagged: Jagged  #: ids, lengths and weights

    @property
    def is_sequence(self) -> bool:
        """Whether each value is a bag of its own; else each sample is one."""
        return self.pooling == "sequence"


@dataclass(frozen=True)
class CallOrder:
    """Where the samples of a call stand among those of the step."""

    number: int  #: of the call
    keep_samples: bool  #: whether the samples of bags are needed to restore their order
    places_B: Tensor | None  #: in the global batch, or None

    def samples(self, one: FeatureLookup) -> Tensor | None:
        """A number a bag that rises with the order of the samples; None where it is not needed."""
        if not self.keep_samples:
            return None
        lengths_B = one.jagged.lengths_B
        samples_B = torch.arange(len(lengths_B), device=lengths_B.device) if self.places_B is None else self.places_B
        return torch.repeat_interleave(samples_B, lengths_B) if one.is_sequence else samples_B


def look_up(
    storage: RowStorage, wanted: Sequence[FeatureLookup], order: CallOrder, anchor: Tensor
) -> Mapping[str, Tensor]:
    """The vectors of each feature, fp32: one a sample, (B, D), or one a value of a sequence, (N, D).

    Each is a tensor of its own: one large tensor would be given back to the system and zeroed anew in every step.

    Args:
        anchor: any tensor that requires a gradient, so that autograd asks for ours; it gets none.
    """
    weights = [None if one.jagged.weights_N is None else one.jagged.weights_N.float() for one in wanted]
    found: tuple[Tensor, ...] = _Lookup.apply(anchor, storage, wanted, order, *weights)  # type: ignore[no-untyped-call]
    return {one.feature: vectors for one, vectors in zip(wanted, found, strict=True)}


class _Lookup(Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        storage: RowStorage,
        wanted: Sequence[FeatureLookup],
        order: CallOrder,
        *weights: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.storage, ctx.wanted, ctx.order = storage, wanted, order
        ctx.save_for_backward(*weights)
        ctx.set_materialize_grads(False)
        return tuple(_vectors(storage, *pair) for pair in zip(wanted, weights, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given = zip(ctx.wanted, ctx.saved_tensors, grads, ctx.needs_input_grad[4:], strict=True)
        return (None,) * 4 + tuple(
            None if grad_GD is None else _keep(ctx.storage, ctx.order, one, weights_N, grad_GD, needs)
            for one, weights_N, grad_GD, needs in given
        )


def _vectors(storage: RowStorage, one: FeatureLookup, weights_N: Tensor | None) -> Tensor:
    rows_RD, ids_N = storage.of_table(storage.rows_RD, one.table), one.jagged.values_N
    if one.is_sequence:
        return rows_RD.index_select(0, ids_N).float()
    out_BD = sum_bags(rows_RD, ids_N, one.jagged.offsets, weights_N)
    return out_BD.div_(_divisors(one)) if one.pooling == "mean" else out_BD


def _divisors(one: FeatureLookup) -> Tensor:
    return one.jagged.lengths_B.clamp(min=1).float()[:, None]


def _keep(
    storage: RowStorage, order: CallOrder, one: FeatureLookup, weights_N: Tensor | None, grad_GD: Tensor, weighed: bool
) -> Tensor | None:
    """Keep a feature's gradient until the step is applied; give that of its weights where it is asked for."""
    grad_GD = grad_GD.float().contiguous()
    if one.pooling == "mean":
        grad_GD = grad_GD / _divisors(one)
    ids_N, has_places = one.jagged.values_N, order.places_B is not None
    lengths_G = torch.ones_like(ids_N) if one.is_sequence else one.jagged.lengths_B
    samples_G = order.samples(one)
    storage.add(PendingGradient(order.number, one.number, ids_N, lengths_G, weights_N, samples_G, has_places, grad_GD))
    return _weight_gradient(storage, one, grad_GD) if weighed else None


def _weight_gradient(storage: RowStorage, one: FeatureLookup, grad_GD: Tensor) -> Tensor:
    """d loss / d weight of a value: the product of its row and its bag's gradient."""
    rows_ND = storage.of_table(storage.rows_RD, one.table).index_select(0, one.jagged.values_N).float()
    return (rows_ND * torch.repeat_interleave(grad_GD, one.jagged.lengths_B, dim=0)).sum(1)
