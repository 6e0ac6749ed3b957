"""Sums the gradients of each touched row over all lookups of a step, in the order of the samples, and packs them.

Ranks exchange the gradients of lookups as two flat tensors.
Shape letters: N values, G bags, D width, U touched rows, I integers, F floating-point numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.sparse.jagged import row_offsets
from nemo_vfm.sparse.tables import numba_kernels
from nemo_vfm.sparse.tables.row_kernels import sum_bags

# A part of the rows with all that is computed from it stays in the cache of a core: 1 MB of fp32.
_NUMBERS_AT_ONCE, _ROWS_AT_ONCE = 1 << 18, 1 << 14


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
class RowSums:
    """Rows of a storage, as a slice or as int64 indices, and the sum of each one's gradients, fp32 (U, D)."""

    rows: slice | Tensor
    sums_UD: Tensor


@dataclass(frozen=True)
class TouchedRows:
    """Every touched row once, rising, and the bags whose gradients it sums."""

    rows_U: Tensor  #: int64
    offsets: Tensor  #: where each row's values begin in `bags_N`, and at last N
    bags_N: Tensor  #: the bag of each value, row after row
    weights_N: Tensor | None  #: of these values, or None for 1
    grads_GD: Tensor  #: of the bags

    def parts(self, fill: bool = False) -> Iterator[RowSums]:
        """Sums of a part of the rows at a time.

        Args:
            fill: where most rows of a range are touched, give the whole range as a slice, with zeros for the others.
        """
        at_once = max(1, min(_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // self.grads_GD.shape[1]))
        begins = list(range(0, len(self.rows_U), at_once))
        ends = [*begins[1:], len(self.rows_U)]
        first_rows, last_rows = self.rows_U[begins].tolist(), self.rows_U[[end - 1 for end in ends]].tolist()
        for begin, end, first, last in zip(begins, ends, first_rows, last_rows, strict=True):
            bounds = self.offsets[begin : end + 1]
            if fill and last + 1 - first <= 1.5 * (end - begin):
                # Offsets of all rows from first to last, of which some are touched: the others are empty.
                offsets = bounds.new_zeros(last + 2 - first)
                filled = offsets.index_copy_(0, self.rows_U[begin:end] - first + 1, bounds.diff()).cumsum_(0)
                yield RowSums(slice(first, last + 1), self._sums(bounds, filled))
            else:
                yield RowSums(self.rows_U[begin:end], self._sums(bounds, bounds - bounds[0]))

    def with_sums(self, parts: Sequence[RowSums]) -> "TouchedRows":
        """The same rows with one gradient each, the sum that `parts` found.

        With weights nothing is kept: a kernel may round their products in another way than `parts`.
        """
        if self.weights_N is not None:
            return self
        places = torch.arange(len(self.rows_U) + 1, device=self.rows_U.device)
        return TouchedRows(self.rows_U, places, places[:-1], None, _cat([part.sums_UD for part in parts]))

    def _sums(self, bounds: Tensor, offsets: Tensor) -> Tensor:
        """Of the values between the first and the last of `bounds`; `offsets` count from the first."""
        begin, end = bounds[[0, -1]].tolist()
        weights = None if self.weights_N is None else self.weights_N[begin:end]
        return sum_bags(self.grads_GD, self.bags_N[begin:end], offsets, weights)


def touched_rows(
    pending: Sequence[PendingGradient], begin_of: Callable[[int], int], first_row: int, num_rows: int
) -> TouchedRows:
    """Bring the values of all lookups in a block of tables into the order of their rows.

    Values of one row keep a fixed order: by place in the global batch where places were given, else by call and
    sample; then by feature, in the order of the tables; then as they come in the sample. Floating-point sums depend on
    that order alone.

    Args:
        pending: at least one.
        begin_of: the number of a feature -> the first row of its table in the storage.
        first_row: of the block in its storage.
        num_rows: of the block.

    Raises:
        ValueError: places were given for some lookups and not for others.
    """
    pending = sorted(pending, key=lambda one: (one.call, one.feature))
    shifts = [begin_of(one.feature) - first_row for one in pending]  # 0 for the first table of a block: no copy
    keys_N = _cat([one.ids_N + shift if shift else one.ids_N for one, shift in zip(pending, shifts, strict=True)])
    samples_G, weights_N = _samples(pending), _weights(pending)
    lengths_G, grads_GD = _cat([one.lengths_G for one in pending]), _cat([one.grads_GD for one in pending])
    rows_U, offsets, bags_N, order_N = _sorted(keys_N, lengths_G, samples_G, num_rows, weights_N is not None)
    if weights_N is not None and order_N is not None:
        weights_N = weights_N.index_select(0, order_N)
    return TouchedRows(rows_U + first_row, offsets, bags_N, weights_N, grads_GD)


def _sorted(
    keys_N: Tensor, lengths_G: Tensor, samples_G: Tensor | None, num_rows: int, with_places: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Touched rows, their offsets, and the bag and the place of each value: by row, and by sample inside a row."""
    if numba_kernels.sorts(keys_N, num_rows):
        order_G = None if samples_G is None else samples_G.sort(stable=True).indices
        return numba_kernels.sorted_by_row(keys_N, row_offsets(lengths_G), order_G, num_rows, with_places)
    # In the smallest integers: a radix sort passes once a byte.
    smallest = next(dtype for dtype in (torch.int16, torch.int32, torch.int64) if num_rows <= torch.iinfo(dtype).max)
    bags_G = torch.arange(len(lengths_G), device=lengths_G.device)
    keys_N, bags_N = keys_N.to(smallest), torch.repeat_interleave(bags_G, lengths_G, output_size=len(keys_N))
    order_N = _row_order(keys_N, samples_G, bags_N)
    rows_U, counts_U = torch.unique_consecutive(keys_N.index_select(0, order_N), return_counts=True)
    return rows_U.long(), row_offsets(counts_U), bags_N.index_select(0, order_N), order_N


def _row_order(keys_N: Tensor, samples_G: Tensor | None, bags_N: Tensor) -> Tensor:
    """A stable order by row, and by sample inside a row."""
    if samples_G is None:
        return keys_N.sort(stable=True).indices
    by_sample_N = samples_G.index_select(0, bags_N).sort(stable=True).indices
    by_row_N = keys_N.index_select(0, by_sample_N).sort(stable=True).indices
    return by_sample_N.index_select(0, by_row_N)


def _samples(pending: Sequence[PendingGradient]) -> Tensor | None:
    """Numbers that rise with the samples, or None where the lookups have that order already."""
    with_places = {one.call: one.has_places for one in pending}
    if any(with_places.values()) and not all(with_places.values()):
        raise ValueError(
            f"{sum(with_places.values())} of {len(with_places)} lookups of this step were given the places of their "
            "samples in the global batch; give them to all or none"
        )
    samples = [one.samples_G if one.has_places else one.samples_G + (one.call << 32)
               for one in pending if one.samples_G is not None]  # fmt: skip
    return _cat(samples) if samples else None


def _weights(pending: Sequence[PendingGradient]) -> Tensor | None:
    """Of all values, 1 where a feature has none; None where no feature has any."""
    if all(one.weights_N is None for one in pending):
        return None
    return _cat([torch.ones_like(one.ids_N, dtype=torch.float32) if one.weights_N is None else one.weights_N
                 for one in pending])  # fmt: skip


def _cat(tensors: Sequence[Tensor]) -> Tensor:
    """Without a copy of a single one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


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
