# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Sorts values by row and updates rows by row-wise AdaGrad in one pass each, compiled by numba when first called.

Shape letters: R rows of a block, N values, G bags, D width, U touched rows.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nemo_vfm.core.log import info
from nemo_vfm.core.optional import available, require

_ROWS_A_VALUE = 4  # the counting sort passes over all rows: with more rows a value, torch's sort is used
_LANES = 16  # sums of squares side by side, in an order that no compiler or machine changes


def usable(tensor: Tensor) -> bool:
    """Whether numba is installed and the tensor is on a CPU."""
    return tensor.device.type == "cpu" and available("numba")


def sorts(keys_N: Tensor, num_rows: int) -> bool:
    """Whether `sorted_bags` is the faster sort for these values."""
    return usable(keys_N) and num_rows <= _ROWS_A_VALUE * len(keys_N)


def sorted_bags(keys_N: Tensor, lengths_G: Tensor, first_row: int, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Touched rows counted from `first_row`, their offsets (U + 1), and the bag of each value, row after row.

    A stable counting sort: values of one row stay in the order of the bags.
    """
    rows_U, bags_N = torch.empty(num_rows, dtype=torch.int64), torch.empty_like(keys_N)
    offsets, ends = torch.zeros(num_rows + 1, dtype=torch.int64), torch.zeros(num_rows + 1, dtype=torch.int64)
    arrays = [one.numpy() for one in (keys_N, lengths_G, ends, rows_U, offsets, bags_N)]
    touched = _compiled("sort")(*arrays, first_row)
    return rows_U[:touched].clone(), offsets[: touched + 1].clone(), bags_N


def update_row_wise(
    rows_RD: Tensor, sum_R: Tensor, rows_U: Tensor, offsets: Tensor, bags_N: Tensor, weights_N: Tensor | None,
    grads_GD: Tensor, numbers: tuple[float, float, float, float],
) -> None:  # fmt: skip
    """m_r += mean_k G_rk^2; w_r -= lr / (sqrt(m_r) + eps) G_r, each row by one thread.

    Args:
        rows_RD: fp32.
        weights_N: of the values, or None for 1: the bits of weights of 1.
        numbers: what gradients are divided by, what they are multiplied by, lr, eps.
    """
    weights = torch.empty(0) if weights_N is None else weights_N
    settings = torch.tensor([*numbers, 1.0, rows_RD.shape[1]], dtype=torch.float32)
    tensors = (rows_RD, sum_R, rows_U, offsets, bags_N, weights, grads_GD, settings)
    arrays, kernel, threads = [one.detach().numpy() for one in tensors], _compiled("update"), torch.get_num_threads()

    def part(begin: int, end: int) -> None:
        kernel(*arrays, torch.empty(rows_RD.shape[1]).numpy(), torch.empty(_LANES).numpy(), begin, end)

    bounds = [len(rows_U) * thread // threads for thread in range(threads + 1)]
    if threads == 1:
        return part(*bounds)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, bounds[:-1], bounds[1:]))


@cache
def _compiled(name: str) -> Callable[..., Any]:
    """Kept on disk between runs, where numba finds a folder that it may write to."""
    numba = require("numba", install="nemo_vfm[recsys]", purpose="The numba kernels of embedding tables")
    info(f"Embedding tables: numba compiles the kernel {name!r} or loads it; this may take some seconds, once.")
    return _jitted(numba, _sort if name == "sort" else _update)


def _jitted(numba: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        compiled: Callable[..., Any] = numba.njit(function, nogil=True, cache=True)
    except RuntimeError:  # no folder to keep it in
        compiled = numba.njit(function, nogil=True)
    return compiled


def _sort(
    keys_N: Any, lengths_G: Any, ends: Any, rows_U: Any, offsets: Any, bags_N: Any, first_row: int
) -> int:  # fmt: skip
    """Fill the last three; how many rows are touched."""
    for n in range(len(keys_N)):
        ends[keys_N[n] - first_row + 1] += 1
    touched = n = 0
    for row in range(len(rows_U)):
        count = ends[row + 1]
        ends[row + 1] += ends[row]
        if count:
            rows_U[touched] = row
            touched += 1
            offsets[touched] = ends[row + 1]
    for bag in range(len(lengths_G)):
        for _ in range(lengths_G[bag]):
            row = keys_N[n] - first_row
            bags_N[ends[row]] = bag
            ends[row] += 1
            n += 1
    return touched


def _update(
    rows_RD: Any, sum_R: Any, rows_U: Any, offsets: Any, bags_N: Any, weights_N: Any, grads_GD: Any,
    settings: Any, grad_D: Any, lanes: Any, begin: int, end: int,
) -> None:  # fmt: skip
    """The constants 1 and D come as fp32 in `settings`: literals would raise the arithmetic to fp64."""
    divisor, clip, lr = settings[0], settings[1], settings[2]
    eps, one, width = settings[3], settings[4], settings[5]
    whole = len(grad_D) - len(grad_D) % _LANES
    for u in range(begin, end):
        grad_D[:] = 0
        for n in range(offsets[u], offsets[u + 1]):
            bag_D = grads_GD[bags_N[n]]
            weight = weights_N[n] if len(weights_N) else one
            for k in range(len(grad_D)):
                grad_D[k] += weight * bag_D[k]
        for k in range(len(grad_D)):
            grad_D[k] = grad_D[k] / divisor * clip
        lanes[:] = 0
        for k in range(0, whole, _LANES):
            for lane in range(_LANES):
                lanes[lane] += grad_D[k + lane] * grad_D[k + lane]
        for k in range(whole, len(grad_D)):
            lanes[k - whole] += grad_D[k] * grad_D[k]
        squares = lanes[0]
        for lane in range(1, _LANES):
            squares += lanes[lane]
        row_D = rows_RD[rows_U[u]]
        sum_R[rows_U[u]] += squares / width
        factor = one / (math.sqrt(sum_R[rows_U[u]]) + eps) * lr
        for k in range(len(grad_D)):
            row_D[k] -= grad_D[k] * factor
