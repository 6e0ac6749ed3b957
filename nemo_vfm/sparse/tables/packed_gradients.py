# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Lays the gradients of lookups out as two flat tensors, so that ranks can exchange them.

Shape letters: I integers, F floating-point numbers, D width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.sparse.tables.touched_rows import BagLookup, BlockSpan, PendingGradient

_HEADER = 6  # numbers of each gradient: block, call, values, bags, has weights, how samples are known
_CALLS_OF_A_RANK = 1 << 16
_NO_SAMPLES, _OWN_SAMPLES, _PLACES = range(3)


@dataclass(frozen=True)
class PackedGradients:
    """Gradients of any number of lookups.

    Args:
        integers_I: int64: how many gradients, a header each, then of each its keys, lengths and samples.
        floats_F: fp32: of each its weights and the gradients of its bags.
    """

    integers_I: Tensor
    floats_F: Tensor


def pack(gradients: Sequence[PendingGradient], device: torch.device) -> PackedGradients:
    """Each gradient is of one block of tables."""
    headers = [number for one in gradients for number in _header(one)]
    integers, floats = [torch.tensor([len(gradients), *headers], device=device)], [torch.empty(0, device=device)]
    for one in gradients:
        lookup = one.lookup
        integers += [lookup.keys_N, lookup.lengths_G, *([] if lookup.samples_G is None else [lookup.samples_G])]
        floats += [*([] if lookup.weights_N is None else [lookup.weights_N]), one.grads_GD.flatten()]
    return PackedGradients(torch.cat(integers), torch.cat(floats))


def unpack(packed: PackedGradients, width: int, rank: int) -> Iterator[PendingGradient]:
    """The gradients, as views.

    Args:
        width: D.
        rank: where they come from; the calls of a rank follow all calls of those before it, as its samples do.
    """
    count = int(packed.integers_I[0])
    headers = packed.integers_I[1 : 1 + count * _HEADER].view(count, _HEADER).tolist()
    integers, floats = _Reader(packed.integers_I, 1 + count * _HEADER), _Reader(packed.floats_F, 0)
    for block, number, values, bags, weighted, samples in headers:
        lookup = BagLookup(
            rank * _CALLS_OF_A_RANK + number,
            integers.take(values),
            integers.take(bags),
            floats.take(values) if weighted else None,
            None if samples == _NO_SAMPLES else integers.take(bags),
            samples == _PLACES,
            (BlockSpan(block, slice(0, values), slice(0, bags)),),
        )
        yield PendingGradient(lookup, floats.take(bags * width).view(bags, width))


class _Reader:
    """Takes one part after another."""

    def __init__(self, tensor: Tensor, begin: int) -> None:
        self._tensor, self._place = tensor, begin

    def take(self, count: int) -> Tensor:
        part = self._tensor[self._place : self._place + count]
        self._place += count
        return part


def _header(one: PendingGradient) -> tuple[int, ...]:
    lookup = one.lookup
    if lookup.number >= _CALLS_OF_A_RANK:
        raise ValueError(f"a step has {lookup.number} lookups, and ranks can exchange {_CALLS_OF_A_RANK - 1} at most")
    samples = _NO_SAMPLES if lookup.samples_G is None else _PLACES if lookup.has_places else _OWN_SAMPLES
    numbers = len(lookup.keys_N), len(lookup.lengths_G), int(lookup.weights_N is not None), samples
    return lookup.spans[0].block, lookup.number, *numbers
