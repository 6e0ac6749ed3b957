"""Processes a large video piece by piece or tile by tile, with the same result and less memory.

Shape letters: B batch, C channels, T frames, H height, W width.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from nemo_vfm.models.blocks.causal_conv import Past

Apply: TypeAlias = Callable[[Tensor], Tensor]
Continue: TypeAlias = Callable[[Tensor, Past | None], Tensor]


def in_pieces(apply: Continue, x_BCTHW: Tensor, *, first: int, step: int, count: int | None) -> Tensor:
    """One piece of time after the other, each with the past that the earlier ones left.

    Args:
        apply: causal in time.
        x_BCTHW: `first` frames and then a multiple of `step`.
        first: frames that make the first frame of the result.
        step: frames that make each further one.
        count: frames of the result at once; None takes all.
    """
    total = 1 + (x_BCTHW.shape[2] - first) // step
    if count is None or count >= total:
        return apply(x_BCTHW, None)
    past = Past()
    borders = [0, *(first + step * (last - 1) for last in range(count, total, count)), x_BCTHW.shape[2]]
    return torch.cat([apply(x_BCTHW[:, :, begin:end], past) for begin, end in pairwise(borders)], dim=2)


def in_tiles(apply: Apply, x_BCTHW: Tensor, side: int | None, halo: int, *, inside: int, outside: int) -> Tensor:
    """One tile of the frames after the other, each with a halo around it whose result is cut off.

    Args:
        apply: a position of its result hangs on no position further away than the halo.
        x_BCTHW: frames whose sides are multiples of `inside`.
        side: of a tile, in positions; None takes whole frames.
        halo: positions to each side.
        inside: pixels of x along a position's side.
        outside: pixels of the result along a position's side.
    """
    if side is None:
        return apply(x_BCTHW)
    rows = []
    for top, bottom, above, below in _spans(x_BCTHW.shape[3] // inside, side, halo):
        row = []
        for left, right, before, behind in _spans(x_BCTHW.shape[4] // inside, side, halo):
            part = x_BCTHW[..., above * inside : below * inside, before * inside : behind * inside]
            cut_h = slice((top - above) * outside, (bottom - above) * outside)
            cut_w = slice((left - before) * outside, (right - before) * outside)
            row.append(apply(part)[..., cut_h, cut_w])
        rows.append(torch.cat(row, dim=4))
    return torch.cat(rows, dim=3)


def _spans(size: int, side: int, halo: int) -> Iterator[tuple[int, int, int, int]]:
    """Begin and end of each tile, then of what goes through with it."""
    for begin in range(0, size, side):
        end = min(begin + side, size)
        yield begin, end, max(begin - halo, 0), min(end + halo, size)
