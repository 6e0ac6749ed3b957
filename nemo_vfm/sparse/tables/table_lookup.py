# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Looks up the rows of many features at once; its backward keeps the gradients of the bags, not of the rows.

Shape letters: B samples of a feature, N values, G bags of all features, D width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.jagged_select import row_offsets
from nemo_vfm.sparse.tables.row_kernels import sum_bags
from nemo_vfm.sparse.tables.row_storage import RowStorage
from nemo_vfm.sparse.tables.touched_rows import BagLookup, PendingGradient


@dataclass(frozen=True)
class FeatureLookup:
    """A feature to look up: its name, the first row of its table in the storage, its values."""

    feature: str
    begin: int
    jagged: Jagged
    mean: bool


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
    lengths_G = torch.cat([one.jagged.lengths_B for one in wanted])
    samples = [order.samples(len(one.jagged), lengths_G.device) for one in wanted] if order.keep_samples else []
    lookup = BagLookup(
        order.number,
        _keys(wanted),
        lengths_G,
        None,
        torch.cat(samples) if samples else None,
        order.places_B is not None,
    )
    out_GD: Tensor = _PooledLookup.apply(anchor, _weights(wanted), storage, lookup, _divisors(wanted))  # type: ignore[no-untyped-call]
    parts = torch.split(out_GD, [len(one.jagged) for one in wanted])
    return {one.feature: part for one, part in zip(wanted, parts, strict=True)}


def sequences(
    storage: RowStorage, wanted: Sequence[FeatureLookup], order: CallOrder, anchor: Tensor
) -> Mapping[str, Tensor]:
    """One vector a value of each feature: (N, D), fp32. See `pooled`."""
    keys_N = _keys(wanted)
    samples = [
        torch.repeat_interleave(order.samples(len(one.jagged), keys_N.device), one.jagged.lengths_B)
        for one in wanted if order.keep_samples
    ]  # fmt: skip
    lookup = BagLookup(
        order.number, keys_N, torch.ones_like(keys_N), None, torch.cat(samples) if samples else None,
        order.places_B is not None,
    )  # fmt: skip
    out_ND: Tensor = _SequenceLookup.apply(anchor, storage, lookup)  # type: ignore[no-untyped-call]
    parts = torch.split(out_ND, [len(one.jagged.values_N) for one in wanted])
    return {one.feature: part for one, part in zip(wanted, parts, strict=True)}


def _keys(wanted: Sequence[FeatureLookup]) -> Tensor:
    return torch.cat([one.jagged.values_N + one.begin for one in wanted])


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
    if not any(one.mean for one in wanted):
        return None
    lengths = [one.jagged.lengths_B for one in wanted]
    divisors = [
        length.clamp(min=1) if one.mean else torch.ones_like(length)
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
        ctx.storage.add(PendingGradient(_weighted(lookup, weights_N), grad_GD))
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


def _weighted(lookup: BagLookup, weights_N: Tensor | None) -> BagLookup:
    weights = None if weights_N is None else weights_N.detach()
    return BagLookup(lookup.number, lookup.keys_N, lookup.lengths_G, weights, lookup.samples_G, lookup.has_places)


def _weight_gradient(storage: RowStorage, lookup: BagLookup, grad_GD: Tensor) -> Tensor:
    """d loss / d weight of a value: the product of its row and its bag's gradient."""
    rows_ND = storage.rows_RD.index_select(0, lookup.keys_N).float()
    return (rows_ND * torch.repeat_interleave(grad_GD, lookup.lengths_G, dim=0)).sum(1)
