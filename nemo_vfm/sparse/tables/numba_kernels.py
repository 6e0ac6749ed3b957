# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Sorts values by row and updates rows by row-wise AdaGrad in one pass each, compiled by numba when first called.

Shape letters: R rows of a block, N values, G bags, D width, U touched rows.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nemo_vfm.core.log import info
from nemo_vfm.core.optional import available, require

_ROWS_A_VALUE = 4  # the counting sort passes over all rows: with more rows a value, torch's sort is used
_BLOCKS_A_THREAD = 4  # with fewer blocks a thread, each block is cut for all threads

# Rows that rise, their offsets (U + 1), the bag of each value, weights of the values or None for 1, gradients of bags.
Block = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]


def usable(tensor: Tensor) -> bool:
    """Whether numba is installed and the tensor is on a CPU."""
    return tensor.device.type == "cpu" and available("numba")


def sorts(keys_N: Tensor, num_rows: int) -> bool:
    """Whether `sorted_bags` is the faster sort for these values."""
    return usable(keys_N) and num_rows <= _ROWS_A_VALUE * len(keys_N)


def sorted_bags(keys_N: Tensor, lengths_G: Tensor, first_row: int, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Touched rows plus `first_row`, their offsets (U + 1), and the bag of each value, row after row.

    A stable counting sort: values of one row stay in the order of the bags.

    Args:
        keys_N: at least 0 and below `num_rows`.
    """
    rows_R, bags_N = torch.empty(num_rows, dtype=torch.int64), torch.empty_like(keys_N)
    offsets, ends = torch.zeros(num_rows + 1, dtype=torch.int64), torch.zeros(num_rows + 1, dtype=torch.int64)
    arrays = [one.numpy() for one in (keys_N, lengths_G, ends, rows_R, offsets, bags_N)]
    touched = _compiled("sort")(*arrays, first_row)
    return rows_R[:touched], offsets[: touched + 1], bags_N


def update_row_wise(
    rows_RD: Tensor, sum_R: Tensor, blocks: Sequence[Block], numbers: tuple[float, float, float, float]
) -> None:
    """m_r += mean_k G_rk^2; w_r -= lr / (sqrt(m_r) + eps) G_r, each row by one thread.

    Args:
        rows_RD: fp32.
        blocks: of different rows.
        numbers: what gradients are divided by, what they are multiplied by, lr, eps.
    """
    divisor, clip, lr, eps = numbers
    settings = torch.tensor([clip / divisor, lr, eps, 1.0, rows_RD.shape[1]], dtype=torch.float32)
    threads = torch.get_num_threads()
    parts = threads if len(blocks) < _BLOCKS_A_THREAD * threads else 1
    calls = [call for block in blocks for call in _calls(rows_RD, sum_R, block, settings, parts)]
    if threads == 1:
        for call in calls:
            call()
        return
    with ThreadPoolExecutor(threads) as pool:
        for result in [pool.submit(call) for call in calls]:
            result.result()


def _calls(rows_RD: Tensor, sum_R: Tensor, block: Block, settings: Tensor, parts: int) -> Iterator[Callable[[], None]]:
    """What updates a part of a block's rows each."""
    rows_U, offsets, bags_N, weights_N, grads_GD = block
    weights = torch.empty(0) if weights_N is None else weights_N
    tensors = (rows_RD, sum_R, rows_U, offsets, bags_N, weights, grads_GD, settings)
    arrays, kernel = [one.detach().numpy() for one in tensors], _compiled("update")
    bounds = [len(rows_U) * part // parts for part in range(parts + 1)]
    for begin, end in pairwise(bounds):
        yield partial(kernel, *arrays, torch.empty(rows_RD.shape[1]).numpy(), begin, end)


@cache
def _compiled(name: str) -> Callable[..., Any]:
    """Kept on disk between runs, where numba finds a folder that it may write to."""
    numba = require("numba", install="nemo_vfm[recsys]", purpose="The numba kernels of embedding tables")
    info(f"Embedding tables: numba compiles the kernel {name!r} or loads it; this may take some seconds, once.")
    return _jitted(numba, _sort if name == "sort" else _update)


def _jitted(numba: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Division as in numpy: a check for zero in every loop would keep it from being vectorised."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        compiled: Callable[..., Any] = numba.njit(function, cache=True, **options)
    except RuntimeError:  # no folder to keep it in
        compiled = numba.njit(function, **options)
    return compiled


def _sort(
    keys_N: Any, lengths_G: Any, ends: Any, rows_R: Any, offsets: Any, bags_N: Any, first_row: int
) -> int:  # fmt: skip
    """Fill the last three; how many rows are touched."""
    for n in range(len(keys_N)):
        ends[keys_N[n] + 1] += 1
    touched = n = 0
    for row in range(len(rows_R)):
        count = ends[row + 1]
        ends[row + 1] += ends[row]
        if count:
            rows_R[touched] = row + first_row
            touched += 1
            offsets[touched] = ends[row + 1]
    for bag in range(len(lengths_G)):
        for _ in range(lengths_G[bag]):
            row = keys_N[n]
            bags_N[ends[row]] = bag
            ends[row] += 1
            n += 1
    return touched


def _update(
    rows_RD: Any, sum_R: Any, rows_U: Any, offsets: Any, bags_N: Any, weights_N: Any, grads_GD: Any,
    settings: Any, grad_D: Any, begin: int, end: int,
) -> None:  # fmt: skip
    """Values two by two, in their order: half as many passes over the sum.

    The constants 1 and D come as fp32 in `settings`: literals would raise the arithmetic to fp64. Elements are read by
    two indices: a view of a row would cost a count of references each.
    """
    scale, lr, eps, one, width = settings[0], settings[1], settings[2], settings[3], settings[4]
    first_weight = second_weight = one
    whole = len(grad_D) - len(grad_D) % 4
    for u in range(begin, end):
        n = offsets[u]
        first = bags_N[n]
        if len(weights_N):
            first_weight = weights_N[n]
        if (offsets[u + 1] - n) % 2:
            for k in range(len(grad_D)):
                grad_D[k] = first_weight * grads_GD[first, k]
            n += 1
        else:
            grad_D[:] = 0
        for n in range(n, offsets[u + 1], 2):
            first, second = bags_N[n], bags_N[n + 1]
            if len(weights_N):
                first_weight, second_weight = weights_N[n], weights_N[n + 1]
            for k in range(len(grad_D)):
                grad_D[k] = grad_D[k] + first_weight * grads_GD[first, k] + second_weight * grads_GD[second, k]
        for k in range(len(grad_D)):
            grad_D[k] *= scale
        a = b = c = d = one - one
        for k in range(0, whole, 4):
            a += grad_D[k] * grad_D[k]
            b += grad_D[k + 1] * grad_D[k + 1]
            c += grad_D[k + 2] * grad_D[k + 2]
            d += grad_D[k + 3] * grad_D[k + 3]
        for k in range(whole, len(grad_D)):
            a += grad_D[k] * grad_D[k]
        row = rows_U[u]
        sum_R[row] += (a + b + c + d) / width
        factor = one / (math.sqrt(sum_R[row]) + eps) * lr
        for k in range(len(grad_D)):
            rows_RD[row, k] -= grad_D[k] * factor
