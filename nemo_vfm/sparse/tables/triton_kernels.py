"""Sums rows of bags and updates rows by row-wise AdaGrad, compiled by Triton; imported only where Triton is installed.

A program sums one bag, or all gradients of one row, some values at a time: each time by a tree, and one time after the
other. So a sum has the same bits in every run, but not those of torch's or numba's kernels.

Shape letters: R rows of a storage, N values, G bags, D width, U touched rows.
"""

from nemo_vfm.core.optional import require

require("triton", purpose="Embedding tables by Triton")

import torch
import triton
import triton.language as tl
from torch import Tensor

from nemo_vfm.sparse.tables.table_spec import MAX_TRITON_COLUMNS

_NUMBERS_AT_ONCE, _VALUES_AT_ONCE = 1024, 16  # a program holds them in 8 registers of each thread of four warps


def sum_bags(rows_RD: Tensor, keys_N: Tensor, offsets: Tensor, weights_N: Tensor | None) -> Tensor:
    """See `row_kernels.sum_bags`; rows of bf16 and fp16 become fp32 in registers alone."""
    out_GD = torch.empty(len(offsets) - 1, rows_RD.shape[1], dtype=torch.float32, device=rows_RD.device)
    columns = min(triton.next_power_of_2(rows_RD.shape[1]), MAX_TRITON_COLUMNS)
    grid = len(out_GD), triton.cdiv(rows_RD.shape[1], columns)
    _sum_bags[grid](
        rows_RD, keys_N, offsets, keys_N if weights_N is None else weights_N, out_GD, rows_RD.shape[1],
        WEIGHTED=weights_N is not None, VALUES=_values(columns), COLUMNS=columns,
    )  # fmt: skip
    return out_GD


def update_row_wise(
    rows_RD: Tensor, sum_R: Tensor, block: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor],
    numbers: tuple[float | Tensor, float, float],
) -> None:  # fmt: skip
    """m_r += mean_k G_rk^2; w_r -= lr / (sqrt(m_r) + eps) G_r, each row by one program.

    Args:
        rows_RD: fp32, of at most 1,024 columns.
        sum_R: m.
        block: rows that rise, their offsets (U + 1), the bag of each value, weights of the values, gradients of bags.
        numbers: what gradients are multiplied by, lr, eps.
    """
    rows_U, offsets, bags_N, weights_N, grads_GD = block
    scale, lr, eps = numbers
    columns = triton.next_power_of_2(rows_RD.shape[1])
    _update_row_wise[(len(rows_U),)](
        rows_RD, sum_R, rows_U, offsets, bags_N, bags_N if weights_N is None else weights_N, grads_GD,
        torch.as_tensor(scale, dtype=torch.float32, device=rows_RD.device), lr, eps, rows_RD.shape[1],
        WEIGHTED=weights_N is not None, VALUES=_values(columns), COLUMNS=columns,
    )  # fmt: skip


def _values(columns: int) -> int:
    return min(_VALUES_AT_ONCE, _NUMBERS_AT_ONCE // columns)


@triton.jit  # type: ignore[untyped-decorator]
def _bag_sum(
    rows: tl.tensor, keys: tl.tensor, weights: tl.tensor, begin: tl.tensor, end: tl.tensor, columns: tl.tensor,
    width: tl.tensor, WEIGHTED: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The sum of the rows of the values begin..end, fp32, (COLUMNS,)."""
    total = tl.zeros([COLUMNS], tl.float32)
    for first in range(begin, end, VALUES):
        places = first + tl.arange(0, VALUES)
        row = tl.load(keys + places, mask=places < end, other=0)
        mask = (places < end)[:, None] & (columns < width)[None, :]
        values = tl.load(rows + row[:, None] * width + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        if WEIGHTED:
            values *= tl.load(weights + places, mask=places < end, other=0.0)[:, None]
        total += tl.sum(values, axis=0)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _sum_bags(
    rows: tl.tensor, keys: tl.tensor, offsets: tl.tensor, weights: tl.tensor, out: tl.tensor, width: tl.tensor,
    WEIGHTED: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    bag = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin, end = tl.load(offsets + bag), tl.load(offsets + bag + 1)
    total = _bag_sum(rows, keys, weights, begin, end, columns, width, WEIGHTED, VALUES, COLUMNS)
    tl.store(out + bag * width + columns, total, mask=columns < width)


@triton.jit  # type: ignore[untyped-decorator]
def _update_row_wise(
    rows: tl.tensor, sums: tl.tensor, touched: tl.tensor, offsets: tl.tensor, bags: tl.tensor, weights: tl.tensor,
    grads: tl.tensor, scale: tl.tensor, lr: tl.tensor, eps: tl.tensor, width: tl.tensor,
    WEIGHTED: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    u = tl.program_id(0).to(tl.int64)
    row, columns = tl.load(touched + u), tl.arange(0, COLUMNS)
    begin, end = tl.load(offsets + u), tl.load(offsets + u + 1)
    gradient = _bag_sum(grads, bags, weights, begin, end, columns, width, WEIGHTED, VALUES, COLUMNS) * tl.load(scale)
    state = tl.load(sums + row) + tl.sum(gradient * gradient, axis=0) / width
    tl.store(sums + row, state)
    places = rows + row * width + columns
    stepped = tl.load(places, mask=columns < width) - gradient * (lr / (tl.sqrt(state) + eps))
    tl.store(places, stepped, mask=columns < width)
