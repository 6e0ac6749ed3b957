"""Stores the rows and the optimizer state of all tables of one dtype and width, one table after another.

The gradients of a touched row are summed over all lookups of a step, in the order of the samples.
Shape letters: R rows of all these tables, N values, G bags, D width, U touched rows or those of a part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import methodcaller

import torch
from torch import Tensor

from nemo_vfm.sparse.jagged import row_offsets
from nemo_vfm.sparse.tables import counter_hash, row_kernels
from nemo_vfm.sparse.tables.counter_hash import round_stochastically
from nemo_vfm.sparse.tables.packed_gradients import PackedGradients, PendingGradient, pack, unpack
from nemo_vfm.sparse.tables.row_kernels import sum_bags
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer, RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import DTYPES, MAX_TRITON_COLUMNS, TableSpec

_INITIAL_ROWS_AT_ONCE = 1 << 14
_ROWS_OF_A_BLOCK = 1 << 13
_ROWS_OF_A_BLOCK_IN_TORCH = torch.iinfo(torch.int16).max
# A part of the rows with all that is computed from it stays in the cache of a core: 1 MB of fp32.
_NUMBERS_AT_ONCE, _ROWS_AT_ONCE = 1 << 18, 1 << 14


class RowStorage:
    """Rows and state, and the gradients that wait for the end of the step."""

    def __init__(
        self, tables: Mapping[str, TableSpec], optimizer: RowOptimizer, seed: int, device: torch.device
    ) -> None:
        self.tables = dict(tables)
        first = next(iter(self.tables.values()))
        self.width, dtype = first.width, DTYPES[first.dtype]
        rows = accumulate((spec.rows for spec in self.tables.values()), initial=0)
        self.begins = dict(zip(self.tables, rows, strict=False))
        self.features = {feature: name for name, spec in self.tables.items() for feature in spec.features}
        self._table_of = list(self.features.values())
        self.num_rows = sum(spec.rows for spec in self.tables.values())
        self.rows_RD = torch.empty(self.num_rows, self.width, dtype=dtype, device=device)
        shapes = optimizer.state_shapes(self.num_rows, self.width)
        self.state = {name: torch.zeros(shape, device=device) for name, shape in shapes.items()}
        self._seed = seed
        self._place(device, fill=device.type != "meta")

    def of_table(self, tensor: Tensor, name: str) -> Tensor:
        """One table's part of the rows or of a state tensor, as a view."""
        return tensor[self.begins[name] : self.begins[name] + self.tables[name].rows]

    def to(self, device: torch.device) -> None:
        """Move everything to `device`; what waits is dropped.

        From meta, where there are no values, rows get their first ones and state is zero.
        """
        made = self.rows_RD.is_meta and device.type != "meta"
        move = partial(torch.empty_like, device=device) if made else methodcaller("to", device)
        self.rows_RD = move(self.rows_RD)
        self.state = {
            n: torch.zeros_like(one, device=device) if made else one.to(device) for n, one in self.state.items()
        }
        self._place(device, fill=made)

    def _place(self, device: torch.device, *, fill: bool) -> None:
        """Make what depends on the device of the rows; nothing waits then. With `fill`, rows get their first values."""
        self._blocks = _blocks(self.tables, _rows_of_a_block(self.rows_RD))
        self._block_of = {name: block for block, names in enumerate(self._blocks) for name in names}
        self.forget()
        salts = [counter_hash.name_salt(self._seed, name) for name in self.tables]
        self._salts_T = torch.tensor(salts, device=device)
        self._begins_T = torch.tensor(list(self.begins.values()), device=device)
        for name, spec in self.tables.items() if fill else ():
            begin, end = self.begins[name], self.begins[name] + spec.rows
            scale = spec.rows**-0.5 if spec.initial_scale is None else spec.initial_scale
            for first in range(begin, end, _INITIAL_ROWS_AT_ONCE):
                rows = slice(first, min(first + _INITIAL_ROWS_AT_ONCE, end))
                self.rows_RD[rows] = counter_hash.uniform(self._row_keys(rows, 0), self.width) * scale

    def add(self, gradient: PendingGradient) -> None:
        """Keep it until the step is applied."""
        block = self._block_of[self._table_of[gradient.feature]]
        self._pending[block].append(gradient)
        self._touched[block] = None

    def has_finite_gradients(self) -> bool:
        """Of what waits."""
        bounds = [torch.stack(one.grads_GD.aminmax()) for pending in self._pending for one in pending
                  if one.grads_GD.numel()]  # fmt: skip
        return not bounds or bool(torch.stack(bounds).isfinite().all())

    def pack_pending(self) -> PackedGradients:
        """What waits, to be sent to other ranks."""
        return pack([one for pending in self._pending for one in pending], self.rows_RD.device)

    def replace(self, by_rank: Sequence[PackedGradients]) -> None:
        """What waits becomes what all ranks sent, as if all their samples, rank after rank, were looked up here."""
        self.forget()
        for rank, packed in enumerate(by_rank):
            for gradient in unpack(packed, self.width, rank):
                self.add(gradient)

    def forget(self) -> None:
        """Drop what waits."""
        self._pending: list[list[PendingGradient]] = [[] for _ in self._blocks]
        self._touched: list[TouchedRows | None] = [None] * len(self._blocks)

    def touched_rows(self) -> "list[TouchedRows]":
        """The touched rows of what waits, of the blocks where something does."""
        for block, pending in enumerate(self._pending):
            if self._touched[block] is None and any(len(one.ids_N) for one in pending):
                names = self._blocks[block]
                num_rows = sum(self.tables[name].rows for name in names)
                self._touched[block] = touched_rows(
                    pending, [self.begins[name] for name in self._table_of], self.begins[names[0]], num_rows
                )
        return [one for one in self._touched if one is not None]

    def squared_norm(self, global_weight: float | Tensor) -> Tensor:
        """Of all rows' gradients after division, fp64; the sums are kept until the step ends or more is added."""
        self.touched_rows()
        total = torch.zeros((), dtype=torch.float64, device=self.rows_RD.device)
        for block, touched in enumerate(self._touched):
            if touched is not None:
                sums = [sums_UD for _, sums_UD in touched.parts()]
                for sums_UD in sums:
                    norms_U = torch.linalg.vector_norm(sums_UD / global_weight, dim=1)
                    total += norms_U.double().square().sum()
                # With weights nothing is kept: a kernel may round their products in another way than `parts`.
                if touched.weights_N is None:
                    places = torch.arange(len(touched.rows_U) + 1, device=touched.rows_U.device)
                    self._touched[block] = TouchedRows(touched.rows_U, places, places[:-1], None, _cat(sums))
        return total

    def apply(
        self, optimizer: RowOptimizer, global_weight: float | Tensor, clip_factor: float | Tensor | None, step: int,
        lr_factor: float,
    ) -> None:  # fmt: skip
        """Update every touched row once with (sum of its gradients) / global_weight * clip_factor."""
        triton = row_kernels.triton_usable(self.rows_RD) and self.width <= MAX_TRITON_COLUMNS
        compiled = self.rows_RD.dtype == torch.float32 and (triton or row_kernels.numba_usable(self.rows_RD))
        # A subclass may update otherwise.
        if compiled and type(optimizer) is RowWiseAdaGrad and not optimizer.weight_decay:
            blocks = [(one.rows_U, one.offsets, one.bags_N, one.weights_N, one.grads_GD) for one in self.touched_rows()]
            clip, lr = 1.0 if clip_factor is None else clip_factor, optimizer.lr * lr_factor
            if triton:
                from nemo_vfm.sparse.tables import triton_kernels

                scale = clip / global_weight
                for block in blocks:
                    triton_kernels.update_row_wise(self.rows_RD, self.state["sum"], block, (scale, lr, optimizer.eps))
            else:
                numbers = float(global_weight), float(clip), lr, optimizer.eps
                row_kernels.update_row_wise(self.rows_RD, self.state["sum"], blocks, numbers)
            return self.forget()
        fill = optimizer.keeps_rows_without_gradient()
        for rows, sums_UD in (part for touched in self.touched_rows() for part in touched.parts(fill)):
            sums_UD.div_(global_weight)
            if clip_factor is not None:
                sums_UD.mul_(clip_factor)
            state = {name: _read(tensor, rows) for name, tensor in self.state.items()}
            rows_UD = _read(self.rows_RD, rows)
            exact_UD = rows_UD if rows_UD.dtype == torch.float32 else rows_UD.float()
            optimizer.update(exact_UD, sums_UD, state, step, lr_factor)
            for name, tensor in self.state.items():
                _write(tensor, rows, state[name])
            if exact_UD is not rows_UD:
                bits_UD = counter_hash.column_bits(self._row_keys(rows, step), self.width)
                rows_UD.copy_(round_stochastically(exact_UD, rows_UD.dtype, bits_UD))
            _write(self.rows_RD, rows, rows_UD)
        self.forget()

    def _row_keys(self, rows: slice | Tensor, step: int) -> Tensor:
        """Of each row's own table and place, so that a table gives the same numbers wherever it is placed."""
        device = self.rows_RD.device
        rows_U = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows
        tables_U = torch.bucketize(rows_U, self._begins_T, right=True) - 1
        places_U = rows_U - self._begins_T.index_select(0, tables_U)
        return counter_hash.row_keys(self._salts_T.index_select(0, tables_U), places_U, step)


def _rows_of_a_block(rows_RD: Tensor) -> int:
    """Torch's sort of less than 32,768 values is not its radix sort, and many times as slow: there, larger blocks."""
    return _ROWS_OF_A_BLOCK if row_kernels.numba_usable(rows_RD) else _ROWS_OF_A_BLOCK_IN_TORCH


def _blocks(tables: Mapping[str, TableSpec], max_rows: int) -> list[list[str]]:
    """Names of tables whose gradients are sorted and summed together: few enough that they stay in the cache.

    Neighbours of few rows make a block, so that small tables cost fewer calls; a larger table is one of its own, and
    its gradients are used where they lie.
    """
    blocks: list[list[str]] = [[]]
    rows = 0
    for name, spec in tables.items():
        if rows and rows + spec.rows > max_rows:
            blocks.append([])
            rows = 0
        blocks[-1].append(name)
        rows += spec.rows
    return blocks


def _read(tensor: Tensor, rows: slice | Tensor) -> Tensor:
    """A view of a slice, a copy of single rows."""
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


def _write(tensor: Tensor, rows: slice | Tensor, values: Tensor) -> None:
    """A view has been changed in place already."""
    if isinstance(rows, Tensor):
        tensor.index_copy_(0, rows, values)


@dataclass(frozen=True)
class TouchedRows:
    """Every touched row once, rising, and the bags whose gradients it sums."""

    rows_U: Tensor  #: int64
    offsets: Tensor  #: where each row's values begin in `bags_N`, and at last N
    bags_N: Tensor  #: the bag of each value, row after row
    weights_N: Tensor | None  #: of these values, or None for 1
    grads_GD: Tensor  #: of the bags

    def parts(self, fill: bool = False) -> Iterator[tuple[slice | Tensor, Tensor]]:
        """A part of the rows at a time, as a slice or int64 indices, and the sum of each one's gradients: fp32 (U, D).

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
                yield slice(first, last + 1), self._sums(bounds, filled)
            else:
                yield self.rows_U[begin:end], self._sums(bounds, bounds - bounds[0])

    def _sums(self, bounds: Tensor, offsets: Tensor) -> Tensor:
        """Of the values between the first and the last of `bounds`; `offsets` count from the first."""
        begin, end = bounds[[0, -1]].tolist()
        weights = None if self.weights_N is None else self.weights_N[begin:end]
        return sum_bags(self.grads_GD, self.bags_N[begin:end], offsets, weights)


def touched_rows(
    pending: Sequence[PendingGradient], begins: Sequence[int], first_row: int, num_rows: int
) -> TouchedRows:
    """Bring the values of all lookups in a block of tables into the order of their rows.

    Values of one row keep a fixed order: by place in the global batch where places were given, else by call and
    sample; then by feature, in the order of the tables; then as they come in the sample. Floating-point sums depend on
    that order alone.

    Args:
        pending: at least one.
        begins: by the number of a feature, the first row of its table in the storage.
        first_row: of the block in its storage.
        num_rows: of the block.

    Raises:
        ValueError: places were given for some lookups and not for others.
    """
    pending = sorted(pending, key=lambda one: (one.call, one.feature))
    shifts = [begins[one.feature] - first_row for one in pending]  # 0 for the first table of a block: no copy
    keys_N = _cat([one.ids_N + shift if shift else one.ids_N for one, shift in zip(pending, shifts, strict=True)])
    with_places = {one.call: one.has_places for one in pending}
    if any(with_places.values()) and not all(with_places.values()):
        raise ValueError(
            f"{sum(with_places.values())} of {len(with_places)} lookups of this step were given the places of their "
            "samples in the global batch; give them to all or none"
        )
    # Numbers that rise with the samples, or None where the lookups have that order already.
    samples = [one.samples_G if one.has_places else one.samples_G + (one.call << 32)
               for one in pending if one.samples_G is not None]  # fmt: skip
    samples_G, weights_N = _cat(samples) if samples else None, None
    if any(one.weights_N is not None for one in pending):
        weights_N = _cat([torch.ones_like(one.ids_N, dtype=torch.float32) if one.weights_N is None else one.weights_N
                          for one in pending])  # fmt: skip
    lengths_G, grads_GD = _cat([one.lengths_G for one in pending]), _cat([one.grads_GD for one in pending])
    rows_U, offsets, bags_N, order_N = _sort_touched(keys_N, lengths_G, samples_G, num_rows, weights_N is not None)
    if weights_N is not None and order_N is not None:
        weights_N = weights_N.index_select(0, order_N)
    return TouchedRows(rows_U + first_row, offsets, bags_N, weights_N, grads_GD)


def _sort_touched(
    keys_N: Tensor, lengths_G: Tensor, samples_G: Tensor | None, num_rows: int, with_places: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Touched rows, their offsets, and the bag and the place of each value: by row, and by sample inside a row."""
    if row_kernels.numba_usable(keys_N) and max(num_rows, len(keys_N)) < 1 << row_kernels.KEY_SHIFT - 1:
        order_G = None if samples_G is None else samples_G.sort(stable=True).indices
        return row_kernels.sorted_by_row(keys_N, row_offsets(lengths_G), order_G, num_rows, with_places)
    # In the smallest integers: a radix sort passes once a byte.
    smallest = next(dtype for dtype in (torch.int16, torch.int32, torch.int64) if num_rows <= torch.iinfo(dtype).max)
    bags_G = torch.arange(len(lengths_G), device=lengths_G.device)
    keys_N, bags_N = keys_N.to(smallest), torch.repeat_interleave(bags_G, lengths_G, output_size=len(keys_N))
    if samples_G is None:
        order_N = keys_N.sort(stable=True).indices
    else:
        by_sample_N = samples_G.index_select(0, bags_N).sort(stable=True).indices
        by_row_N = keys_N.index_select(0, by_sample_N).sort(stable=True).indices
        order_N = by_sample_N.index_select(0, by_row_N)
    rows_U, counts_U = torch.unique_consecutive(keys_N.index_select(0, order_N), return_counts=True)
    return rows_U.long(), row_offsets(counts_U), bags_N.index_select(0, order_N), order_N


def _cat(tensors: Sequence[Tensor]) -> Tensor:
    """Without a copy of a single one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
