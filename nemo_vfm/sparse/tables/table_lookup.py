# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Looks up the rows of many features at once; its backward keeps the gradients of the bags, not of the rows.

Shape letters: B samples of a feature, N values, G bags of all features, D width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.jagged_select import row_offsets
from nemo_vfm.sparse.tables.row_kernels import sum_bags
from nemo_vfm.sparse.tables.row_storage import RowStorage
from nemo_vfm.sparse.tables.touched_rows import BagLookup, BlockSpan, PendingGradient


@dataclass(frozen=True)
class FeatureLookup:
    """A feature to look up.

    Args:
        feature: its name.
        begin: the first row of its table in the storage.
        block: of its table in the storage.
        jagged: ids, lengths and weights.
        pooling: of its table.
    """

    feature: str
    begin: int
    block: int
    jagged: Jagged
    pooling: str

    @property
    def num_bags(self) -> int:
        """A sample, or a value of a sequence."""
        return len(self.jagged.values_N) if self.pooling == "sequence" else len(self.jagged)


@dataclass(frozen=True)
class CallOrder:
    """Where the samples of a call stand among those of the step.

    Args:
        number: of the call.
        keep_samples: whether the samples of bags are needed to restore their order.
        places_B: in the global batch, or None.
    """

    number: int
    keep_samples: bool
    places_B: Tensor | None

    def samples(self, count: int, device: torch.device) -> Tensor:
        """A number a sample that rises with the order of the samples."""
        return torch.arange(count, device=device) if self.places_B is None else self.places_B


def pooled(
    storage: RowStorage, wanted: Sequence[FeatureLookup], order: CallOrder, anchor: Tensor
) -> Mapping[str, Tensor]:
    """One vector a sample of each feature: (B, D), fp32.

    Args:
        anchor: any tensor that requires a gradient, so that autograd asks for ours; it gets none.
    """
    lookup = _bag_lookup(wanted, order, torch.cat([one.jagged.lengths_B for one in wanted]))
    out_GD: Tensor = _PooledLookup.apply(anchor, _weights(wanted), storage, lookup, _divisors(wanted))  # type: ignore[no-untyped-call]
    return _by_feature(wanted, out_GD)


def sequences(
    storage: RowStorage, wanted: Sequence[FeatureLookup], order: CallOrder, anchor: Tensor
) -> Mapping[str, Tensor]:
    """One vector a value of each feature: (N, D), fp32. See `pooled`."""
    ones_N = torch.cat([torch.ones_like(one.jagged.values_N) for one in wanted])
    lookup = _bag_lookup(wanted, order, ones_N)
    out_ND: Tensor = _SequenceLookup.apply(anchor, storage, lookup)  # type: ignore[no-untyped-call]
    return _by_feature(wanted, out_ND)


def _by_feature(wanted: Sequence[FeatureLookup], out_GD: Tensor) -> Mapping[str, Tensor]:
    parts = torch.split(out_GD, [one.num_bags for one in wanted])
    return {one.feature: part for one, part in zip(wanted, parts, strict=True)}


def _bag_lookup(wanted: Sequence[FeatureLookup], order: CallOrder, lengths_G: Tensor) -> BagLookup:
    keys_N = torch.cat([one.jagged.values_N + one.begin for one in wanted])
    samples_G = torch.cat([_samples(one, order) for one in wanted]) if order.keep_samples else None
    has_places = order.places_B is not None
    return BagLookup(order.number, keys_N, lengths_G, None, samples_G, has_places, tuple(_spans(wanted)))


def _samples(one: FeatureLookup, order: CallOrder) -> Tensor:
    samples_B = order.samples(len(one.jagged), one.jagged.lengths_B.device)
    return torch.repeat_interleave(samples_B, one.jagged.lengths_B) if one.pooling == "sequence" else samples_B


def _spans(wanted: Sequence[FeatureLookup]) -> Iterator[BlockSpan]:
    value = bag = 0
    for block, members in groupby(wanted, key=lambda one: one.block):
        counts = [(len(one.jagged.values_N), one.num_bags) for one in members]
        next_value, next_bag = value + sum(values for values, _ in counts), bag + sum(bags for _, bags in counts)
        yield BlockSpan(block, slice(value, next_value), slice(bag, next_bag))
        value, bag = next_value, next_bag


def _weights(wanted: Sequence[FeatureLookup]) -> Tensor | None:
    """Weights of all values, 1 where a feature has none; None where no feature has any."""
    if all(one.jagged.weights_N is None for one in wanted):
        return None
    return torch.cat([
        torch.ones_like(one.jagged.values_N, dtype=torch.float32) if one.jagged.weights_N is None
        else one.jagged.weights_N.float()
        for one in wanted
    ])  # fmt: skip


def _divisors(wanted: Sequence[FeatureLookup]) -> Tensor | None:
    """What each bag is divided by, (G, 1): its length where its feature takes a mean; None where none does."""
    if not any(one.pooling == "mean" for one in wanted):
        return None
    lengths = [one.jagged.lengths_B for one in wanted]
    divisors = [
        length.clamp(min=1) if one.pooling == "mean" else torch.ones_like(length)
        for one, length in zip(wanted, lengths, strict=True)
    ]
    return torch.cat(divisors).float()[:, None]


class _PooledLookup(Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        weights_N: Tensor | None,
        storage: RowStorage,
        lookup: BagLookup,
        divisors: Tensor | None,
    ) -> Tensor:
        ctx.storage, ctx.lookup, ctx.divisors = storage, lookup, divisors
        ctx.save_for_backward(weights_N)
        out_GD = sum_bags(storage.rows_RD, lookup.keys_N, row_offsets(lookup.lengths_G), weights_N)
        return out_GD if divisors is None else out_GD.div_(divisors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_GD: Tensor) -> tuple[Tensor | None, ...]:
        (weights_N,) = ctx.saved_tensors
        lookup: BagLookup = ctx.lookup
        grad_GD = grad_GD.float().contiguous()
        if ctx.divisors is not None:
            grad_GD = grad_GD / ctx.divisors
        ctx.storage.add(PendingGradient(replace(lookup, weights_N=weights_N), grad_GD))
        grad_weights_N = _weight_gradient(ctx.storage, lookup, grad_GD) if ctx.needs_input_grad[1] else None
        return None, grad_weights_N, None, None, None


class _SequenceLookup(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, storage: RowStorage, lookup: BagLookup) -> Tensor:
        ctx.storage, ctx.lookup = storage, lookup
        return storage.rows_RD.index_select(0, lookup.keys_N).float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[None, None, None]:
        ctx.storage.add(PendingGradient(ctx.lookup, grad_ND.float().contiguous()))
        return None, None, None


def _weight_gradient(storage: RowStorage, lookup: BagLookup, grad_GD: Tensor) -> Tensor:
    """d loss / d weight of a value: the product of its row and its bag's gradient."""
    rows_ND = storage.rows_RD.index_select(0, lookup.keys_N).float()
    return (rows_ND * torch.repeat_interleave(grad_GD, lookup.lengths_G, dim=0)).sum(1)
