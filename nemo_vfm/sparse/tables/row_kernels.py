"""Sums table rows and bag gradients, the same bits with any number of threads, and says which kernels there are.

Shape letters: R rows of a storage, N values, G bags, D width.
"""

import os
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_vfm.core.log import info
from nemo_vfm.core.optional import available
from nemo_vfm.sparse.tables import numba_kernels

_VALUES_AT_ONCE = 1 << 14  # rows of bf16 and fp16 that become fp32 at a time: 4 MB at width 64


@cache
def announce(device: str) -> None:
    """Say once which kernels run."""
    probe = torch.empty(0, device=device)
    if triton_usable(probe):
        which = "Triton for row-wise AdaGrad on fp32 and for sums of bf16 and fp16, else torch operators"
    elif numba_kernels.usable(probe):
        which = "numba for the sort and for row-wise AdaGrad on fp32, else torch operators"
    else:
        which = "torch operators"
    info(f"Embedding tables on {device}: kernels in {which}.")


def triton_usable(tensor: Tensor) -> bool:
    """Whether Triton is installed, and runs where the tensor is: its interpreter takes those of a CPU."""
    runs = tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return runs and available("triton")


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
    return torch.cat([_sum_part(rows_RD, keys_N, part, weights_N) for part in _parts(offsets)])


def _parts(offsets: Tensor) -> list[Tensor]:
    """The offsets of some bags at a time."""
    num_bags = len(offsets) - 1
    mean_length = max(1, int(offsets[-1]) // num_bags)
    at_once = max(1, _VALUES_AT_ONCE // mean_length)
    return [offsets[begin : begin + at_once + 1] for begin in range(0, num_bags, at_once)]


def _sum_part(rows_RD: Tensor, keys_N: Tensor, offsets: Tensor, weights_N: Tensor | None) -> Tensor:
    """In fp32: torch's own sum of bf16 rows would be rounded to bf16."""
    begin, end = int(offsets[0]), int(offsets[-1])
    rows_ND = rows_RD.index_select(0, keys_N[begin:end]).float()
    weights = None if weights_N is None else weights_N[begin:end]
    places = torch.arange(end - begin, device=keys_N.device)
    return sum_bags(rows_ND, places, offsets - begin, weights)
