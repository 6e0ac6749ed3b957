"""Sums, sorts and updates table rows by torch operators or by numba, and says which kernels there are.

Sums have the same bits with any number of threads. Numba compiles a kernel when it is first called.
Shape letters: R rows of a storage or of a block, N values, G bags, D width, Q a quarter of it, U touched rows.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_vfm.core.log import info
from nemo_vfm.core.optional import available, require

_VALUES_AT_ONCE = 1 << 14  # rows of bf16 and fp16 that become fp32 at a time: 4 MB at width 64
_ROWS_A_VALUE = 4  # the counting sort passes over all rows: with more rows a value, the radix sort is faster
_BITS = 11  # of a row's number that one pass of the sort looks at: its counts stay in the nearest cache
_DIGITS, KEY_SHIFT = 1 << _BITS, 32
_BLOCKS_A_THREAD = 4  # with fewer blocks a thread, each block is cut for all threads

# Rows that rise, their offsets (U + 1), the bag of each value, weights of the values or None for 1, gradients of bags.
Block = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]

_installed = cache(available)  # asked in every step


@cache
def announce(device: str) -> None:
    """Say once which kernels run."""
    probe = torch.empty(0, device=device)
    if triton_usable(probe):
        which = "Triton for row-wise AdaGrad on fp32 and for sums of bf16 and fp16, else torch operators"
    elif numba_usable(probe):
        which = "numba for the sort and for row-wise AdaGrad on fp32, else torch operators"
    else:
        which = "torch operators"
    info(f"Embedding tables on {device}: kernels in {which}.")


def triton_usable(tensor: Tensor) -> bool:
    """Whether Triton is installed, and runs where the tensor is: its interpreter takes those of a CPU."""
    runs = tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return runs and _installed("triton")


def sum_bags(rows_RD: Tensor, keys_N: Tensor, offsets: Tensor, weights_N: Tensor | None) -> Tensor:
    """Sums of rows, bag after bag, each from its first value to its last: fp32, (G, D).

    Args:
        rows_RD: fp32, bf16 or fp16.
        keys_N: which row each value is.
        offsets: where each bag begins, and at last N; G + 1 numbers.
        weights_N: of the values, fp32; None means 1.
    """
    if len(offsets) == 1 or not len(keys_N):
        return rows_RD.new_zeros(len(offsets) - 1, rows_RD.shape[1], dtype=torch.float32)
    if rows_RD.dtype == torch.float32:
        return F.embedding_bag(
            keys_N, rows_RD, offsets, mode="sum", per_sample_weights=weights_N, include_last_offset=True
        )
    if triton_usable(rows_RD):
        from nemo_vfm.sparse.tables import triton_kernels

        return triton_kernels.sum_bags(rows_RD, keys_N, offsets, weights_N)
    # In fp32, some bags at a time: torch's own sum of bf16 rows would be rounded to bf16.
    num_bags, sums = len(offsets) - 1, []
    at_once = max(1, _VALUES_AT_ONCE // max(1, int(offsets[-1]) // num_bags))
    for first in range(0, num_bags, at_once):
        bounds = offsets[first : first + at_once + 1]
        begin, end = int(bounds[0]), int(bounds[-1])
        rows_ND = rows_RD.index_select(0, keys_N[begin:end]).float()
        weights = None if weights_N is None else weights_N[begin:end]
        sums.append(sum_bags(rows_ND, torch.arange(end - begin, device=keys_N.device), bounds - begin, weights))
    return torch.cat(sums)


def numba_usable(tensor: Tensor) -> bool:
    """Whether numba is installed and the tensor is on a CPU."""
    return tensor.device.type == "cpu" and _installed("numba")


def sorted_by_row(
    keys_N: Tensor, offsets: Tensor, order_G: Tensor | None, num_rows: int, with_places: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Touched rows, their offsets (U + 1), and the bag and, where asked for, the place of each value, row after row.

    Values of one row stay in the order of the bags.

    Args:
        keys_N: rows, at least 0 and below `num_rows`.
        offsets: where each bag begins, and at last N.
        order_G: the order of the bags, or None where they are in order.
    """
    count, few = len(keys_N), num_rows <= _ROWS_A_VALUE * len(keys_N)
    order_G = torch.empty(0, dtype=torch.int64) if order_G is None else order_G
    bags_N, places_N = torch.empty_like(keys_N), torch.empty(count if with_places or not few else 0, dtype=torch.int64)
    rows_U, bounds = (torch.zeros(min(count, num_rows) + 1, dtype=torch.int64) for _ in range(2))
    tensors = [keys_N, offsets, order_G, bags_N, places_N, rows_U, bounds]
    tensors += [torch.zeros(1 + (num_rows if few else _DIGITS), dtype=torch.int64)]
    tensors += [] if few else [torch.empty_like(keys_N)]
    arrays = [one.numpy() for one in tensors]
    touched = _compile("count")(*arrays) if few else _compile("sort")(*arrays, num_rows)
    return rows_U[:touched], bounds[: touched + 1], bags_N, places_N if with_places else None


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
    threads, kernel, calls = torch.get_num_threads(), _compile("update"), []
    parts = threads if len(blocks) < _BLOCKS_A_THREAD * threads else 1
    for rows_U, offsets, bags_N, weights_N, grads_GD in blocks:
        weights = torch.empty(0) if weights_N is None else weights_N
        tensors = (rows_RD, sum_R, rows_U, offsets, bags_N, weights, grads_GD, settings)
        arrays = [one.detach().numpy() for one in tensors]
        for begin, end in pairwise([len(rows_U) * part // parts for part in range(parts + 1)]):
            spare = (torch.empty(numbers).numpy() for numbers in (rows_RD.shape[1], rows_RD.shape[1] // 4))
            calls.append(partial(kernel, *arrays, *spare, begin, end))
    if threads == 1:
        for call in calls:
            call()
        return
    with ThreadPoolExecutor(threads) as pool:
        for result in [pool.submit(call) for call in calls]:
            result.result()


@cache
def _compile(name: str) -> Callable[..., Any]:
    """Kept on disk between runs, where numba finds a folder that it may write to."""
    numba = require("numba", purpose="The numba kernels of embedding tables")
    info(f"Embedding tables: numba compiles or loads the kernel {name!r}; this may take some seconds, once.")
    kernels: dict[str, Callable[..., Any]] = {"count": _count, "sort": _sort, "update": _update}
    # Division as in numpy: a check for zero in every loop would keep it from being vectorised.
    function = kernels[name]
    options = {"nogil": True, "error_model": "numpy"}
    try:
        compiled: Callable[..., Any] = numba.njit(function, cache=True, **options)
    except RuntimeError:  # no folder to keep it in
        compiled = numba.njit(function, **options)
    return compiled


def _count(
    keys_N: Any, offsets: Any, order_G: Any, bags_N: Any, places_N: Any, rows_U: Any, bounds: Any, ends: Any
) -> int:  # fmt: skip
    """A counting sort; how many rows are touched."""
    for n in range(len(keys_N)):
        ends[keys_N[n] + 1] += 1
    touched = 0
    for row in range(len(ends) - 1):
        count = ends[row + 1]
        ends[row + 1] += ends[row]
        if count:
            rows_U[touched] = row
            touched += 1
            bounds[touched] = ends[row + 1]
    for i in range(len(offsets) - 1):
        bag = order_G[i] if len(order_G) else i
        for n in range(offsets[bag], offsets[bag + 1]):
            row = keys_N[n]
            bags_N[ends[row]] = bag
            if len(places_N):
                places_N[ends[row]] = n
            ends[row] += 1
    return touched


def _sort(
    keys_N: Any, offsets: Any, order_G: Any, bags_N: Any, places_N: Any, rows_U: Any, bounds: Any, ends: Any,
    spare_N: Any, num_rows: int,
) -> int:  # fmt: skip
    """A radix sort; how many rows are touched. Key and place are one number, so that a pass moves both at once.

    Loops in place of slices, which take four seconds more to compile.
    """
    source_N, target_N = places_N, spare_N
    m = 0
    for i in range(len(offsets) - 1):
        bag = order_G[i] if len(order_G) else i
        for n in range(offsets[bag], offsets[bag + 1]):
            source_N[m] = keys_N[n] << KEY_SHIFT | n
            m += 1
    shift = KEY_SHIFT
    while (num_rows - 1) >> (shift - KEY_SHIFT):
        for digit in range(len(ends)):
            ends[digit] = 0
        for n in range(len(source_N)):
            ends[(source_N[n] >> shift & _DIGITS - 1) + 1] += 1
        for digit in range(_DIGITS):
            ends[digit + 1] += ends[digit]
        for n in range(len(source_N)):
            digit = source_N[n] >> shift & _DIGITS - 1
            target_N[ends[digit]] = source_N[n]
            ends[digit] += 1
        source_N, target_N = target_N, source_N
        shift += _BITS
    for bag in range(len(offsets) - 1):
        for n in range(offsets[bag], offsets[bag + 1]):
            target_N[n] = bag
    touched, last = 0, -1
    for n in range(len(source_N)):
        row, place = source_N[n] >> KEY_SHIFT, source_N[n] & (1 << KEY_SHIFT) - 1
        if row != last:
            rows_U[touched] = last = row
            bounds[touched] = n
            touched += 1
        bags_N[n] = target_N[place]
        source_N[n] = place
    for n in range(len(source_N)):
        places_N[n] = source_N[n]
    bounds[touched] = len(source_N)
    return touched


def _update(
    rows_RD: Any, sum_R: Any, rows_U: Any, offsets: Any, bags_N: Any, weights_N: Any, grads_GD: Any,
    settings: Any, grad_D: Any, squares_Q: Any, begin: int, end: int,
) -> None:  # fmt: skip
    """Values two by two, in their order: half as many passes over the sum.

    Squares are first added over quarters of the row: a loop that adds to a single number is not vectorised, since that
    would change the order.

    The constants 1 and D come as fp32 in `settings`: literals would raise the arithmetic to fp64. Elements are read by
    two indices: a view of a row would cost a count of references each.
    """
    scale, lr, eps, one, width = settings[0], settings[1], settings[2], settings[3], settings[4]
    first_weight = second_weight = one
    quarter = len(squares_Q)
    for u in range(begin, end):
        n = offsets[u]
        first = bags_N[n]
        if len(weights_N):
            first_weight = weights_N[n]
        odd = (offsets[u + 1] - n) % 2
        if odd:
            for k in range(len(grad_D)):
                grad_D[k] = first_weight * grads_GD[first, k]
        else:
            for k in range(len(grad_D)):
                grad_D[k] = 0
        for n in range(offsets[u] + odd, offsets[u + 1], 2):
            first, second = bags_N[n], bags_N[n + 1]
            if len(weights_N):
                first_weight, second_weight = weights_N[n], weights_N[n + 1]
            for k in range(len(grad_D)):
                grad_D[k] = grad_D[k] + first_weight * grads_GD[first, k] + second_weight * grads_GD[second, k]
        for k in range(len(grad_D)):
            grad_D[k] *= scale
        for k in range(quarter):
            a, b, c, d = grad_D[k], grad_D[k + quarter], grad_D[k + 2 * quarter], grad_D[k + 3 * quarter]
            squares_Q[k] = (a * a + b * b) + (c * c + d * d)
        squares = one - one
        for k in range(quarter):
            squares += squares_Q[k]
        for k in range(4 * quarter, len(grad_D)):
            squares += grad_D[k] * grad_D[k]
        row = rows_U[u]
        sum_R[row] += squares / width
        factor = one / (math.sqrt(sum_R[row]) + eps) * lr
        for k in range(len(grad_D)):
            rows_RD[row, k] -= grad_D[k] * factor
