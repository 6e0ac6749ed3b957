"""Packs cached latents of any shapes into sequences of tokens within a budget.

Which samples share a pack is planned once, from the seed; every epoch gives the same packs in another order. So the
packs of global batch g are a function of (shards, seed, g), computed without stepping through the earlier ones.
"""

import copy
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Self

import torch
from torch.utils.data import Dataset

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.seed import generator
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.sample_batches import PackedBatch
from nemo_vfm.core.types.training_data import ReadPosition
from nemo_vfm.data.batching.batch_source import Loaded
from nemo_vfm.data.batching.faults import Fault, Faults
from nemo_vfm.data.batching.pack_collate import side_by_side
from nemo_vfm.data.batching.packing import LOOKAHEAD, Pack, Packing, pack, packing
from nemo_vfm.data.batching.sample_order import Group
from nemo_vfm.data.loader.batch_loader import Batches, BatchReader
from nemo_vfm.data.loader.global_batches import Feed


class PackedLatents:
    """Packs of cached latents: images and videos of any shapes side by side, each with its own noise, rate and text.

    Args:
        data: provides the samples and reads ahead; its batch sizes do not matter here.
        budget_tokens: of a pack, the most that one forward pass holds.
        packs: of a global batch, over all ranks; more than one a rank are one pass unless parallel.microbatches cuts.
        patch: latent positions that make a token, the model's: in time, height and width.
        lookahead: samples that are planned together.
        packed: False gives the same samples in the same batches and runs them one by one: the same losses and
            gradients, slower, to compare with.

    Raises:
        ValueError: a number is below 1, or ranks are to fetch the data together.
    """

    def __init__(
        self,
        *,
        data: Feed,
        budget_tokens: int,
        packs: int = 1,
        patch: tuple[int, int, int] = (1, 2, 2),
        lookahead: int = LOOKAHEAD,
        packed: bool = True,
    ) -> None:
        if min(budget_tokens, packs, lookahead, *patch) < 1:
            raise ValueError(
                f"budget_tokens ({budget_tokens}), packs ({packs}), patch {patch} and lookahead ({lookahead}) must be "
                "at least 1"
            )
        if data.fetches_together:
            raise ValueError("packs cannot be fetched together yet; remove fetch_together from the packed data")
        self.data, self.budget_tokens, self.packs, self.patch = data, budget_tokens, packs, patch
        self.lookahead, self.packed = lookahead, packed
        self._begins, self._place = 0, 0
        self._started: _Started | None = None

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        """See `TrainingData.start`; the packs of a rank are no other's.

        Raises:
            UserError: a sample is longer than the budget, the data holds no latents, or packs cannot be divided.
        """
        if self.packs % num_ranks:
            raise UserError(f"packs {self.packs} of a global batch cannot be divided among {num_ranks} data ranks")
        self.data.start(seed=seed, first_batch=0)
        plan = self._planned(self.data.train_groups(), seed)
        before = plan.packs_before(self._place) - self._begins * self.packs
        batches = PackedBatches(self.data.reader(), plan, self.packs, rank, num_ranks, before, packed=self.packed)
        # Another seed leaves these as they are, so that its losses can be compared.
        held_out = PackedBatches(self.data.reader(), self._planned(self.data.held_out_groups(), 0))
        self._started = _Started(batches, first_batch, held_out)
        figures = self.packing()
        info(f"{figures.num_packs} packs an epoch, {figures.efficiency:.1%} of their tokens are samples")

    @property
    def faults(self) -> Faults:
        """Bad samples met so far."""
        return self.data.faults

    def batch_sizes(self) -> dict[str, int]:
        """See `HasBatchSizes`: packs are what ranks divide."""
        return {"packs": self.packs}

    def begins(self) -> int:
        """See `ResumableData`."""
        return self._begins

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData`; it is of one part, and moves on pack by pack."""
        plan, (first, *_) = self.by_number().plan, self.by_number().numbers(index, 0)
        return {"packs": ReadPosition(plan.samples_before(first), len(plan.samples), plan.digest)}

    def starting(self, first_batch: int, places: Mapping[str, int]) -> Self:
        """See `ResumableData`; where the packs are others, it goes on with the next one that is whole."""
        found = copy.copy(self)
        found._begins, found._place, found._started = first_batch, places.get("packs", 0), None
        return found

    def batching(self) -> dict[str, int]:
        """See `ResumableData`."""
        return {"packs": self.packs}

    def batched(self, batching: Json) -> Self:
        """See `ResumableData`."""
        found = copy.copy(self)
        found.packs, found._started = batching["packs"], None
        return found

    def packing(self) -> Packing:
        """How well the packs are filled."""
        return packing(self.by_number().plan.packs, self.budget_tokens)

    def by_number(self) -> "PackedBatches":
        """See `Blendable.by_number`."""
        return self._now().batches

    def mean_batch_size(self) -> float:
        """See `Blendable.mean_batch_size`."""
        return self.num_train_samples() / self.batches_per_epoch()

    def reads_ahead(self) -> bool:
        """See `Blendable.reads_ahead`."""
        return self.data.reads_ahead()

    def train_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.train_dataloader`."""
        return Batches(
            self.by_number(),
            first=self._now().first,
            num_workers=self.data.num_workers,
            faults=self.faults,
            max_ahead_bytes=int(self.data.max_ahead_gb * 1e9),
            max_memory_share=self.data.max_memory_share,
        )

    def val_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.val_dataloader`: packs of what is held out, one a batch, the same on every rank."""
        return _HeldOut(self._now().held_out, self.packed, self.data.max_bad_in_a_row)

    def batches_per_epoch(self) -> float:
        """See `TrainingData.batches_per_epoch`."""
        return len(self.by_number().plan.packs) / self.packs

    def num_train_samples(self) -> int:
        """See `TrainingData.num_train_samples`."""
        return self.data.num_train_samples()

    def _planned(self, groups: Sequence[Group], seed: int) -> "Plan":
        together = [(group, sample) for group in groups for sample in group.samples]
        mixed = [together[place] for place in _permutation(len(together), seed, "samples")]
        lengths = {group.name: self._tokens(group) for group in groups}
        try:
            packs = pack([lengths[group.name] for group, _ in mixed], self.budget_tokens, lookahead=self.lookahead)
        except ValueError as error:
            raise UserError(
                f"{error}; raise budget_tokens, or drop such samples. Shapes and their tokens:  {lengths}"
            ) from error
        keys = [entry.key for entry in self.data.reader().entries([sample for _, sample in mixed])]
        return Plan(tuple(mixed), tuple(packs), seed, sha256_text(f"{seed} {packs} {keys}")[:16])

    def _tokens(self, group: Group) -> int:
        layout = self.data.reader().layout(group)
        if "latents" not in layout:
            raise UserError("packing needs cached latents; run the encode step on these shards first")
        shape = layout["latents"][1][1:]
        return math.prod(-(-length // patch) for length, patch in zip(shape, self.patch, strict=True))

    def _now(self) -> "_Started":
        if self._started is None:
            raise UserError("packs were read before start(seed=..., first_batch=...) was called; call it first")
        return self._started


@dataclass(frozen=True, slots=True)
class Plan:
    """All packs of an epoch, and the order of each epoch.

    Args:
        samples: (shape, place in the list of entries) of each.
        packs: of places in `samples`.
        seed: of the epochs' orders.
        digest: of all of it.
    """

    samples: tuple[tuple[Group, int], ...]
    packs: tuple[Pack, ...]
    seed: int
    digest: str = ""

    def pack(self, index: int) -> Pack:
        """Pack `index` since the start of training."""
        epoch, place = divmod(index, len(self.packs))
        return self.packs[self._order(epoch)[place]]

    def samples_before(self, index: int) -> int:
        """How many samples there are before pack `index`."""
        epoch, place = divmod(index, len(self.packs))
        return epoch * len(self.samples) + sum(len(self.packs[one].samples) for one in self._order(epoch)[:place])

    def packs_before(self, place: int) -> int:
        """How many packs it takes to hold so many samples."""
        epoch, left = divmod(place, len(self.samples))
        ends = list(accumulate((len(self.packs[one].samples) for one in self._order(epoch)), initial=0))
        return epoch * len(self.packs) + bisect_left(ends, left)

    def _order(self, epoch: int) -> tuple[int, ...]:
        return _permutation(len(self.packs), self.seed, "packs", epoch)


class PackedBatches(Dataset[Loaded]):
    """The packs of global batch g, or this rank's share of them, by its number.

    Args:
        reader: reads samples.
        plan: which of them share a pack.
        packs: of a global batch.
        rank: which share.
        num_ranks: of how many.
        before: packs more than `packs` a batch that come before every batch; fewer where it is below 0.
        packed: see `PackedLatents`.
    """

    def __init__(
        self, reader: BatchReader, plan: Plan, packs: int = 1, rank: int = 0, num_ranks: int = 1, before: int = 0, *,
        packed: bool = True,
    ) -> None:  # fmt: skip
        self._reader, self.plan, self._packed = reader, plan, packed
        self._packs, self._rank, self._num_ranks, self._before = packs, rank, num_ranks, before

    def __getitem__(self, index: int) -> Loaded:
        batch, faults = self.read(index, [self.plan.pack(number) for number in self.numbers(index, self._rank)])
        return (batch, faults) if self._packed else (replace(batch, apart=self._most(index)), faults)

    def read(self, index: int, packs: Sequence[Pack]) -> tuple[PackedBatch, list[Fault | None]]:
        """The samples of some packs as batch `index`."""
        chosen = [self.plan.samples[place] for one in packs for place in one.samples]
        read = [self._reader.read(index, group, [sample]) for group, sample in chosen]
        return side_by_side(index, [batch for batch, _ in read]), [fault for _, faults in read for fault in faults]

    def is_light(self) -> bool:
        """See `ByNumber.is_light`."""
        return self._reader.is_light()

    def max_bytes(self) -> int:
        """See `ByNumber.max_bytes`."""
        each = {group.name: self._reader.sample_bytes(group) for group, _ in set(self.plan.samples)}
        largest = max(sum(each[self.plan.samples[place][0].name] for place in one.samples) for one in self.plan.packs)
        return largest * (self._packs // self._num_ranks)

    def numbers(self, index: int, rank: int) -> range:
        """Which packs a rank has of batch `index`."""
        share = self._packs // self._num_ranks
        first = self._before + index * self._packs + rank * share
        return range(first, first + share)

    def _most(self, index: int) -> int:
        """Samples of the rank that has most: all call the model so often."""
        ranks = range(self._num_ranks)
        return max(sum(len(self.plan.pack(n).samples) for n in self.numbers(index, rank)) for rank in ranks)


class _HeldOut:
    """One pack after another, the same at every iteration."""

    def __init__(self, batches: PackedBatches, packed: bool, max_bad_in_a_row: int) -> None:
        self._batches, self._packed, self._max_bad_in_a_row = batches, packed, max_bad_in_a_row

    def __iter__(self) -> Iterator[Batch]:
        faults = Faults(max_in_a_row=self._max_bad_in_a_row)
        for index, one in enumerate(self._batches.plan.packs):
            batch, found = self._batches.read(index, [one])
            faults.count(found)
            yield from [batch] if self._packed else batch.alone()


@dataclass(frozen=True, slots=True)
class _Started:
    batches: PackedBatches
    first: int
    held_out: PackedBatches


@lru_cache(maxsize=8)
def _permutation(count: int, seed: int, *names: str | int) -> tuple[int, ...]:
    return tuple(torch.randperm(count, generator=generator(seed, "packing", *names)).tolist())
