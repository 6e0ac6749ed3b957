# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Lengths in tokens and a budget in; which samples lie side by side in one sequence, and where each begins, out.

A pack is one sequence of samples of any resolution and length, as attention over variable lengths takes them: a list of
cumulative lengths says where each begins. Packs are planned window by window: the next `lookahead` samples are sorted
by length and each is put where it fits best, so a window's packs are a function of the lengths in it alone.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

LOOKAHEAD = 4096  # samples: the last pack of a window stays as full as it is, so a window should give many packs


@dataclass(frozen=True, slots=True)
class Pack:
    """Samples side by side in one sequence.

    Args:
        samples: their positions in the list of lengths, in the list's order.
        lengths: tokens of each.
        sizes: tokens that each takes up, padding included.
    """

    samples: tuple[int, ...]
    lengths: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def cu_seqlens(self) -> tuple[int, ...]:
        """Tokens before each sample and at the end, without padding: 0 first."""
        return (0, *accumulate(self.lengths))

    @property
    def cu_seqlens_padded(self) -> tuple[int, ...]:
        """The same with padding: where each sample really begins."""
        return (0, *accumulate(self.sizes))


@dataclass(frozen=True, slots=True)
class Packing:
    """How well packs are filled.

    Args:
        num_packs: how many there are.
        tokens: of all samples.
        efficiency: tokens over packs times budget, above 0 and at most 1.
    """

    num_packs: int
    tokens: int
    efficiency: float


def padded(length: int, multiple: int) -> int:
    """Tokens rounded up: context and sequence parallelism split each sample into equal parts."""
    return -(-length // multiple) * multiple


def pack(lengths: Sequence[int], budget: int, *, lookahead: int = LOOKAHEAD, multiple: int = 1) -> list[Pack]:
    """Packs in the order of their first samples; every sample lies in exactly one.

    Args:
        lengths: tokens of each sample, at least 1.
        budget: tokens of a sequence.
        lookahead: samples that are planned together; more fill packs better.
        multiple: each sample is padded to a multiple of this many tokens.

    Raises:
        ValueError: a sample is longer than the budget, or a number is below 1.
    """
    if min(budget, lookahead, multiple, *lengths, 1) < 1:
        raise ValueError(f"lengths, budget ({budget}), lookahead ({lookahead}) and multiple ({multiple}) are 1 or more")
    sizes = [padded(length, multiple) for length in lengths]
    if sizes and max(sizes) > budget:
        where = sizes.index(max(sizes))
        raise ValueError(f"sample {where} has {lengths[where]} tokens, {sizes[where]} padded: more than {budget}")
    found: list[Pack] = []
    for first in range(0, len(lengths), lookahead):
        bins = _best_fit(sizes[first : first + lookahead], budget)
        groups = sorted(sorted(first + place for place in group) for group in bins)
        found += [Pack(tuple(g), tuple(lengths[i] for i in g), tuple(sizes[i] for i in g)) for g in groups]
    return found


def in_order(lengths: Sequence[int], budget: int) -> list[Pack]:
    """The simplest packing, to compare with: samples as they come, a new pack where one does not fit."""
    groups: list[list[int]] = [[]]
    room = budget
    for place, length in enumerate(lengths):
        if length > room:
            groups.append([])
            room = budget
        groups[-1].append(place)
        room -= length
    filled = [group for group in groups if group]
    return [Pack(tuple(g), s := tuple(lengths[i] for i in g), s) for g in filled]


def packing(packs: Sequence[Pack], budget: int) -> Packing:
    """How well the budget is used; padding counts as waste."""
    tokens = sum(sum(pack.lengths) for pack in packs)
    return Packing(len(packs), tokens, tokens / (budget * len(packs)) if packs else 1.0)


def _best_fit(sizes: Sequence[int], budget: int) -> list[list[int]]:
    """Longest first, each where least room is left over; rooms are kept sorted, so a search is a bisection."""
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room left, which bin)
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        at = bisect_left(rooms, (sizes[place], -1))
        if at == len(rooms):
            bins.append([])
            rooms.append((budget, len(bins) - 1))
        room, which = rooms.pop(at)
        bins[which].append(place)
        insort(rooms, (room - sizes[place], which))
    return bins
