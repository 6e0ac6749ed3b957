"""Lays the gradients of lookups out as two flat tensors, so that ranks can exchange them.

Shape letters: I integers, F floating-point numbers, D width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.sparse.tables.touched_rows import PendingGradient

_HEADER = 6  # numbers of each gradient: call, feature, values, bags, has weights, how samples are known
_CALLS_OF_A_RANK = 1 << 16
_NO_SAMPLES, _OWN_SAMPLES, _PLACES = range(3)


@dataclass(frozen=True)
class PackedGradients:
    """Gradients of any number of lookups."""

    integers_I: Tensor  #: int64: how many gradients, a header each, then of each its ids, lengths and samples
    floats_F: Tensor  #: fp32: of each its weights and the gradients of its bags


def pack(gradients: Sequence[PendingGradient], device: torch.device) -> PackedGradients:
    """The same on all ranks, however each divides its tables into blocks.

    Raises:
        ValueError: a step has too many lookups.
    """
    headers = [number for one in gradients for number in _header(one)]
    integers, floats = [torch.tensor([len(gradients), *headers], device=device)], [torch.empty(0, device=device)]
    for one in gradients:
        integers += [one.ids_N, one.lengths_G, *([] if one.samples_G is None else [one.samples_G])]
        floats += [*([] if one.weights_N is None else [one.weights_N]), one.grads_GD.flatten()]
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
    for call, feature, values, bags, weighted, samples in headers:
        yield PendingGradient(
            rank * _CALLS_OF_A_RANK + call,
            feature,
            integers.take(values),
            integers.take(bags),
            floats.take(values) if weighted else None,
            None if samples == _NO_SAMPLES else integers.take(bags),
            samples == _PLACES,
            floats.take(bags * width).view(bags, width),
        )


class _Reader:
    """Takes one part after another."""

    def __init__(self, tensor: Tensor, begin: int) -> None:
        self._tensor, self._place = tensor, begin

    def take(self, count: int) -> Tensor:
        part = self._tensor[self._place : self._place + count]
        self._place += count
        return part


def _header(one: PendingGradient) -> tuple[int, ...]:
    if one.call >= _CALLS_OF_A_RANK:
        raise ValueError(f"a step has {one.call} lookups, but ranks can exchange at most {_CALLS_OF_A_RANK - 1}")
    samples = _NO_SAMPLES if one.samples_G is None else _PLACES if one.has_places else _OWN_SAMPLES
    return one.call, one.feature, len(one.ids_N), len(one.lengths_G), int(one.weights_N is not None), samples
