"""Stores the rows and the optimizer state of all tables of one dtype and width, one table after another.

Shape letters: R rows of all these tables, U rows of a part, D width.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from operator import methodcaller

import torch
from torch import Tensor

from nemo_vfm.sparse.tables import counter_hash, numba_kernels
from nemo_vfm.sparse.tables.counter_hash import round_stochastically
from nemo_vfm.sparse.tables.row_kernels import triton_usable
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer, RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import DTYPES, MOST_TRITON_COLUMNS, TableSpec
from nemo_vfm.sparse.tables.touched_rows import (
    PackedGradients,
    PendingGradient,
    TouchedRows,
    pack,
    touched_rows,
    unpack,
)

_INITIAL_ROWS_AT_ONCE = 1 << 14
_ROWS_OF_A_BLOCK = 1 << 13
_ROWS_OF_A_BLOCK_IN_TORCH = torch.iinfo(torch.int16).max


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
        self._place(device)
        for name, spec in self.tables.items() if device.type != "meta" else ():
            self._initialize(name, spec)

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
        self._place(device)
        for name, spec in self.tables.items() if made else ():
            self._initialize(name, spec)

    def _place(self, device: torch.device) -> None:
        """Everything that depends on the device of the rows; nothing waits then."""
        self._blocks = _blocks(self.tables, _rows_of_a_block(self.rows_RD))
        self._block_of = {name: block for block, names in enumerate(self._blocks) for name in names}
        self.forget()
        salts = [counter_hash.signed_salt(counter_hash.name_salt(self._seed, name)) for name in self.tables]
        self._salts_T = torch.tensor(salts, device=device)
        self._begins_T = torch.tensor(list(self.begins.values()), device=device)

    @property
    def pending(self) -> int:
        """How many gradients of a feature's lookup wait for the end of the step."""
        return sum(map(len, self._pending))

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

    def packed(self) -> PackedGradients:
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

    def touched(self) -> list[TouchedRows]:
        """The touched rows of what waits, of the blocks where something does."""
        for block, pending in enumerate(self._pending):
            if self._touched[block] is None and any(len(one.ids_N) for one in pending):
                names = self._blocks[block]
                num_rows = sum(self.tables[name].rows for name in names)
                self._touched[block] = touched_rows(pending, self._begin_of, self.begins[names[0]], num_rows)
        return [one for one in self._touched if one is not None]

    def squared_norm(self, global_weight: float | Tensor) -> Tensor:
        """Of all rows' gradients after division, fp64; the sums are kept until the step ends or more is added."""
        self.touched()
        total = torch.zeros((), dtype=torch.float64, device=self.rows_RD.device)
        for block, touched in enumerate(self._touched):
            if touched is not None:
                parts = list(touched.parts())
                for part in parts:
                    norms_U = torch.linalg.vector_norm(part.sums_UD / global_weight, dim=1)
                    total += norms_U.double().square().sum()
                self._touched[block] = touched.with_sums(parts)
        return total

    def apply(
        self, optimizer: RowOptimizer, global_weight: float | Tensor, clip_factor: float | Tensor | None, step: int
    ) -> None:
        """Update every touched row once with (sum of its gradients) / global_weight * clip_factor."""
        fill = optimizer.keeps_rows_without_gradient()
        if type(optimizer) is RowWiseAdaGrad and self._has_kernel(optimizer):  # a subclass may update otherwise
            self._update_row_wise(optimizer, global_weight, 1.0 if clip_factor is None else clip_factor)
            return self.forget()
        for part in (part for touched in self.touched() for part in touched.parts(fill)):
            part.sums_UD.div_(global_weight)
            if clip_factor is not None:
                part.sums_UD.mul_(clip_factor)
            state = {name: _read(tensor, part.rows) for name, tensor in self.state.items()}
            rows_UD = _read(self.rows_RD, part.rows)
            exact_UD = rows_UD if rows_UD.dtype == torch.float32 else rows_UD.float()
            optimizer.update(exact_UD, part.sums_UD, state, step)
            for name, tensor in self.state.items():
                _write(tensor, part.rows, state[name])
            if exact_UD is not rows_UD:
                bits_UD = counter_hash.column_bits(self._row_keys(part.rows, step), self.width)
                rows_UD.copy_(round_stochastically(exact_UD, rows_UD.dtype, bits_UD))
            _write(self.rows_RD, part.rows, rows_UD)
        self.forget()

    def _begin_of(self, feature: int) -> int:
        return self.begins[self._table_of[feature]]

    def _has_kernel(self, optimizer: RowWiseAdaGrad) -> bool:
        plain = self.rows_RD.dtype == torch.float32 and not optimizer.weight_decay
        return plain and (self._takes_triton() or numba_kernels.usable(self.rows_RD))

    def _takes_triton(self) -> bool:
        return triton_usable(self.rows_RD) and self.width <= MOST_TRITON_COLUMNS

    def _update_row_wise(self, optimizer: RowWiseAdaGrad, divisor: float | Tensor, clip: float | Tensor) -> None:
        blocks = [(one.rows_U, one.offsets, one.bags_N, one.weights_N, one.grads_GD) for one in self.touched()]
        if self._takes_triton():
            from nemo_vfm.sparse.tables.triton_kernels import update_row_wise

            for block in blocks:
                update_row_wise(self.rows_RD, self.state["sum"], block, (clip / divisor, optimizer.lr, optimizer.eps))
        else:
            numbers = float(divisor), float(clip), optimizer.lr, optimizer.eps
            numba_kernels.update_row_wise(self.rows_RD, self.state["sum"], blocks, numbers)

    def _row_keys(self, rows: slice | Tensor, step: int) -> Tensor:
        """Of each row's own table and place, so that a table gives the same numbers wherever it is placed."""
        device = self.rows_RD.device
        rows_U = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows
        tables_U = torch.bucketize(rows_U, self._begins_T, right=True) - 1
        places_U = rows_U - self._begins_T.index_select(0, tables_U)
        return counter_hash.row_keys(self._salts_T.index_select(0, tables_U), places_U, step)

    def _initialize(self, name: str, spec: TableSpec) -> None:
        begin, end = self.begins[name], self.begins[name] + spec.rows
        for first in range(begin, end, _INITIAL_ROWS_AT_ONCE):
            rows = slice(first, min(first + _INITIAL_ROWS_AT_ONCE, end))
            self.rows_RD[rows] = counter_hash.uniform(self._row_keys(rows, 0), self.width) * spec.scale


def _rows_of_a_block(rows_RD: Tensor) -> int:
    """Torch's sort of less than 32,768 values is not its radix sort, and many times as slow: there, larger blocks."""
    return _ROWS_OF_A_BLOCK if numba_kernels.usable(rows_RD) else _ROWS_OF_A_BLOCK_IN_TORCH


def _blocks(tables: Mapping[str, TableSpec], most_rows: int) -> list[list[str]]:
    """Names of tables whose gradients are sorted and summed together: few enough that they stay in the cache.

    Neighbours of few rows make a block, so that small tables cost fewer calls; a larger table is one of its own, and
    its gradients are used where they lie.
    """
    blocks: list[list[str]] = [[]]
    rows = 0
    for name, spec in tables.items():
        if rows and rows + spec.rows > most_rows:
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
