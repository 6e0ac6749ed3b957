"""Packs the gradients of lookups into two flat tensors, which ranks exchange, and unpacks them.

Shape letters: N values, G bags, D width, I integers, F floating-point numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_HEADER = 6  # numbers of each gradient: call, feature, values, bags, has weights, how samples are known
_CALLS_OF_A_RANK = 1 << 16
_NO_SAMPLES, _OWN_SAMPLES, _PLACES = range(3)


@dataclass(frozen=True)
class PendingGradient:
    """The gradients of one feature's bags in one lookup, until the step is applied."""

    call: int  #: number of the lookup, in the order of the forward passes of a step
    feature: int  #: number of the feature in its storage, in the order of the tables
    ids_N: Tensor  #: rows of its table
    lengths_G: Tensor  #: values a bag
    weights_N: Tensor | None  #: of the values, or None for 1
    samples_G: Tensor | None  #: the sample of each bag, where their order has to be restored
    has_places: bool  #: whether `samples_G` are places in the global batch
    grads_GD: Tensor  #: fp32


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
    headers = []
    for one in gradients:
        if one.call >= _CALLS_OF_A_RANK:
            raise ValueError(f"a step has {one.call} lookups, but ranks can exchange at most {_CALLS_OF_A_RANK - 1}")
        samples = _NO_SAMPLES if one.samples_G is None else _PLACES if one.has_places else _OWN_SAMPLES
        headers += [one.call, one.feature, len(one.ids_N), len(one.lengths_G), one.weights_N is not None, samples]
    integers = [torch.tensor([len(gradients), *map(int, headers)], device=device)]
    floats = [torch.empty(0, device=device)]
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
    at, at_float = 1 + count * _HEADER, 0
    for call, feature, values, bags, weighted, samples in headers:
        ids_end, lengths_end = at + values, at + values + bags
        end = lengths_end if samples == _NO_SAMPLES else lengths_end + bags
        weights_end = at_float + values if weighted else at_float
        yield PendingGradient(
            rank * _CALLS_OF_A_RANK + call, feature,
            packed.integers_I[at:ids_end], packed.integers_I[ids_end:lengths_end],
            packed.floats_F[at_float:weights_end] if weighted else None,
            None if samples == _NO_SAMPLES else packed.integers_I[lengths_end:end], samples == _PLACES,
            packed.floats_F[weights_end : weights_end + bags * width].view(bags, width),
        )  # fmt: skip
        at, at_float = end, weights_end + bags * width
