# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Cached latents of any shapes in, packs of them out: each a sequence of tokens within a budget, with its borders.

Which samples share a pack is planned once, from the seed; every epoch gives the same packs in another order. So pack g
is a function of (shards, seed, g), found without walking through the packs before it.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types import Batch
from nemo_vfm.data.feed import Feed
from nemo_vfm.data.order import Group
from nemo_vfm.data.pack import LOOKAHEAD, Pack, Packing, pack, packing


@dataclass(frozen=True, slots=True)
class Packed:
    """One sequence of samples side by side, as attention over variable lengths (THD) takes them.

    Args:
        index: g, the number of this pack since the start of training.
        parts: the samples, a Batch of one each; a bad one keeps its place with weight 0.
        lengths: tokens of each.
        cu_seqlens: tokens before each sample and at the end, without padding, (n + 1,) int32.
        cu_seqlens_padded: the same with padding: where each sample begins in the sequence.
    """

    index: int
    parts: tuple[Batch, ...]
    lengths: tuple[int, ...]
    cu_seqlens: Tensor
    cu_seqlens_padded: Tensor

    @property
    def keys(self) -> tuple[str, ...]:
        """One clip id a sample."""
        return tuple(key for part in self.parts for key in part.keys)


class PackedLatents:
    """Packs of cached latents. No task of today takes them: attention over packs is to come.

    Args:
        data: where the samples come from; its buckets and batch sizes do not matter here.
        budget_tokens: of a sequence.
        patch: latent positions that make a token: in time, height and width.
        lookahead: samples that are planned together.
        multiple: each sample is padded to a multiple of this many tokens, which context parallelism splits.
    """

    def __init__(
        self,
        *,
        data: Feed,
        budget_tokens: int,
        patch: tuple[int, int, int] = (1, 2, 2),
        lookahead: int = LOOKAHEAD,
        multiple: int = 1,
    ) -> None:
        if min(budget_tokens, lookahead, multiple, *patch) < 1:
            raise ValueError(
                f"budget_tokens ({budget_tokens}), patch {patch}, lookahead ({lookahead}) and multiple ({multiple}) "
                "must be at least 1"
            )
        self.data, self.budget_tokens, self.patch = data, budget_tokens, patch
        self.lookahead, self.multiple = lookahead, multiple
        self._plan: _Plan | None = None
        self._first = 0

    def start(self, *, seed: int, first_pack: int) -> None:
        """Plan, and be ready to give pack `first_pack` first.

        Raises:
            UserError: a sample is longer than the budget, or the data holds no latents.
        """
        self.data.start(seed=seed, first_batch=0)
        self._plan, self._first = _Plan(self, seed), first_pack
        figures = self.packing()
        info(f"{figures.num_packs} packs an epoch, {figures.efficiency:.1%} of their tokens are samples")

    def packing(self) -> Packing:
        """How well the packs are filled."""
        return packing(self._planned().packs, self.budget_tokens)

    def packs(self) -> Iterator[Packed]:
        """Packs `first_pack`, `first_pack` + 1, ... without end."""
        return (self.packed(index) for index in itertools.count(self._first))

    def packed(self, index: int) -> Packed:
        """Pack `index`."""
        plan, reader = self._planned(), self.data.reader()
        chosen = plan.pack(index)
        read = [reader.read(index, *plan.samples[place]) for place in chosen.samples]
        self.data.faults.count([fault for _, faults in read for fault in faults])
        borders = (
            torch.tensor(lengths, dtype=torch.int32) for lengths in (chosen.cu_seqlens, chosen.cu_seqlens_padded)
        )
        return Packed(index, tuple(batch for batch, _ in read), chosen.lengths, *borders)

    def tokens(self, group: Group) -> int:
        """How many tokens a sample of this shape makes."""
        layout = self.data.reader().layout(group)
        if "latents" not in layout:
            raise UserError("packs are made of cached latents; run the encode step on these shards first")
        shape = layout["latents"][1][1:]
        return math.prod(-(-length // patch) for length, patch in zip(shape, self.patch, strict=True))

    def _planned(self) -> "_Plan":
        if self._plan is None:
            raise UserError("packs are asked for before the start; call start(seed=..., first_pack=...) first")
        return self._plan


class _Plan:
    """All packs of an epoch, and the order of each epoch."""

    def __init__(self, data: PackedLatents, seed: int) -> None:
        self._in_epoch = lru_cache(maxsize=2)(lambda epoch: _permutation(len(self.packs), seed, "packs", epoch))
        together = [(group, sample) for group in data.data.train_groups() for sample in group.samples]
        mixed = _permutation(len(together), seed, "samples")
        self.samples: list[tuple[Group, Sequence[int]]] = [(together[i][0], (together[i][1],)) for i in mixed]
        lengths = {group.name: data.tokens(group) for group in data.data.train_groups()}
        every = [lengths[group.name] for group, _ in self.samples]
        try:
            self.packs = pack(every, data.budget_tokens, lookahead=data.lookahead, multiple=data.multiple)
        except ValueError as error:
            raise UserError(str(error)) from error

    def pack(self, index: int) -> Pack:
        """Pack `index` since the start of training."""
        epoch, place = divmod(index, len(self.packs))
        return self.packs[self._in_epoch(epoch)[place]]


def _permutation(count: int, seed: int, *names: str | int) -> list[int]:
    numbers: list[int] = torch.randperm(count, generator=generator(seed, "packing", *names)).tolist()
    return numbers
