"""Finds which numbers of rows give a row the same bits whatever the other rows are.

A library of matrix products chooses its kernel by the number of rows, and kernels sum in different orders. Where 1 row
and 16 rows take different ones, a text alone is filled up to the smallest number that agrees with the largest.
"""

from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor

#: Takes the numbers of rows in a batch, in their order; returns the scores of each.
Probe = Callable[[list[int]], Tensor]


def candidates(most: int) -> list[int]:
    """Numbers of rows to choose from, ascending: fine steps below 32, where a row more costs most."""
    steps = [1, 2, 4, 6, 8, 10, 12, 14, *range(16, 32, 4), *range(32, 64, 8), *range(64, 4096, 32)]
    return [*(step for step in steps if step < most), most]


def invariant_row_counts(probe: Probe, most: int) -> tuple[int, ...]:
    """Numbers of rows, ascending, in which every row has the same bits; the last is the largest batch to use.

    Args:
        probe: runs texts as one batch.
        most: rows wanted at once; fewer are returned only where a row's place in such a batch matters.
    """
    for largest in reversed(candidates(most)):
        expected = probe(list(range(largest)))
        if torch.equal(probe(list(reversed(range(largest)))).flip(0), expected):
            smaller = candidates(largest)[:-1]
            return (*(n for n in smaller if torch.equal(probe(list(range(n))), expected[:n])), largest)
    return (1,)


def prompt_rows(tokens: int) -> int:
    """How many rows a piece of a prompt is filled up to.

    oneDNN keeps compiled code for every number of rows that it meets. A server of 136 MB of weights held 90 MB of it
    after prompts of all lengths up to 128.
    """
    step = 8 if tokens <= 32 else 16 if tokens <= 128 else 64
    return -(-tokens // step) * step


def joint_rows(probe: Probe, counts: tuple[int, ...], most: int) -> int:
    """The largest number of rows up to which every number of `prompt_rows` gives a row the bits that `counts` give it.

    Args:
        probe: see `invariant_row_counts`.
        counts: what that found.
        most: not beyond this.
    """
    expected, found = probe(list(range(counts[-1]))), 0
    for rows in dict.fromkeys(map(prompt_rows, range(1, most + 1))):
        common = min(rows, counts[-1])
        if rows > most or not torch.equal(probe(list(range(rows)))[:common], expected[:common]):
            break
        found = rows
    return found


def rows_for(counts: tuple[int, ...], texts: int) -> int:
    """The smallest of the counts that holds so many texts."""
    return counts[bisect_left(counts, texts)]
