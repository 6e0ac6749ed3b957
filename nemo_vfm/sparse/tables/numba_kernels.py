# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Sorts values by row and updates rows by row-wise AdaGrad in one pass each, compiled by numba when first called.

Shape letters: R rows of a block, N values, G bags, D width, U touched rows.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
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
    found = _compiled("sort")(keys_N.numpy(), lengths_G.numpy(), first_row, num_rows)
    rows_U, offsets, bags_N = map(torch.from_numpy, found)
    return rows_U, offsets, bags_N


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
    kernel, threads = _compiled("update"), torch.get_num_threads()
    weights = torch.empty(0) if weights_N is None else weights_N
    tensors = [one.detach().numpy() for one in (rows_RD, sum_R, rows_U, offsets, bags_N, weights, grads_GD)]
    settings = [np.float32(number) for number in numbers]
    bounds = np.linspace(0, len(rows_U), threads + 1).astype(int).tolist()
    if threads == 1:
        kernel(*tensors, *settings, 0, len(rows_U))
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda begin, end: kernel(*tensors, *settings, begin, end), bounds[:-1], bounds[1:]))


@cache
def _compiled(name: str) -> Callable[..., Any]:
    """Kept on disk between runs, where numba finds a folder that it may write to."""
    numba = require("numba", install="nemo_vfm[recsys]", purpose="The numba kernels of embedding tables")
    info(f"Embedding tables: numba compiles the kernel {name!r} or loads it; this may take some seconds, once.")
    return _jitted(numba, {"sort": _sort, "update": _update}[name])


def _jitted(numba: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        compiled: Callable[..., Any] = numba.njit(function, nogil=True, cache=True)
    except RuntimeError:  # no folder to keep it in
        compiled = numba.njit(function, nogil=True)
    return compiled


def _sort(keys_N: Any, lengths_G: Any, first_row: int, num_rows: int) -> Any:
    ends = np.zeros(num_rows + 1, np.int64)
    for n in range(len(keys_N)):
        ends[keys_N[n] - first_row + 1] += 1
    rows_U, offsets, touched = np.empty(num_rows, np.int64), np.zeros(num_rows + 1, np.int64), 0
    for row in range(num_rows):
        count = ends[row + 1]
        ends[row + 1] += ends[row]
        if count:
            rows_U[touched] = row
            touched += 1
            offsets[touched] = ends[row + 1]
    bags_N, n = np.empty(len(keys_N), np.int64), 0
    for bag in range(len(lengths_G)):
        for _ in range(lengths_G[bag]):
            row = keys_N[n] - first_row
            bags_N[ends[row]] = bag
            ends[row] += 1
            n += 1
    return rows_U[:touched].copy(), offsets[: touched + 1].copy(), bags_N


def _update(
    rows_RD: Any, sum_R: Any, rows_U: Any, offsets: Any, bags_N: Any, weights_N: Any,
    grads_GD: Any, divisor: Any, clip: Any, lr: Any, eps: Any, begin: int, end: int,
) -> None:  # fmt: skip
    width = rows_RD.shape[1]
    grad_D, lanes, one = np.empty(width, np.float32), np.empty(_LANES, np.float32), np.float32(1)
    for u in range(begin, end):
        grad_D[:] = np.float32(0)
        for n in range(offsets[u], offsets[u + 1]):
            bag_D = grads_GD[bags_N[n]]
            weight = weights_N[n] if len(weights_N) else one
            for k in range(width):
                grad_D[k] += weight * bag_D[k]
        for k in range(width):
            grad_D[k] = grad_D[k] / divisor * clip
        lanes[:] = np.float32(0)
        whole = width - width % _LANES
        for k in range(0, whole, _LANES):
            for lane in range(_LANES):
                lanes[lane] += grad_D[k + lane] * grad_D[k + lane]
        for k in range(whole, width):
            lanes[k - whole] += grad_D[k] * grad_D[k]
        squares = np.float32(0)
        for lane in range(_LANES):
            squares += lanes[lane]
        row_D = rows_RD[rows_U[u]]
        sum_R[rows_U[u]] += squares / np.float32(width)
        factor = one / (np.sqrt(sum_R[rows_U[u]]) + eps) * lr
        for k in range(width):
            row_D[k] -= grad_D[k] * factor
