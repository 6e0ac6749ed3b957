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
from typing import NamedTuple, Self

import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.seed import generator
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.sample_batches import PackedBatch
from nemo_vfm.core.types.training_data import ReadPosition
from nemo_vfm.data.batching.batch_source import Loaded
from nemo_vfm.data.batching.packing import LOOKAHEAD, Pack, measure_packing, pack, side_by_side
from nemo_vfm.data.batching.sample_order import BatchGroup, ShapeGroup
from nemo_vfm.data.batching.sample_shapes import SampleShapes
from nemo_vfm.data.loader.listed_data import ListedData
from nemo_vfm.data.loader.opened_samples import EntryReader
from nemo_vfm.data.loader.scheduled_data import ScheduledData


class Packs(NamedTuple):
    """Samples that lie side by side in a batch."""

    samples: tuple[ShapeGroup, ...]  #: one by one
    apart: int = 0  #: see `PackedBatch`


@dataclass(frozen=True, slots=True)
class PackReader:
    """Reads packs of samples that another reader reads one by one."""

    inner: EntryReader
    is_light = True  # latents, never decoded

    def read(self, index: int, samples: Packs) -> Loaded:
        """See `SampleReader.read`."""
        read = [self.inner.read(index, one) for one in samples.samples]
        batch = side_by_side(index, [batch for batch, _ in read])
        return replace(batch, apart=samples.apart), [fault for _, faults in read for fault in faults]

    def num_bytes(self, samples: Packs) -> int:
        """See `SampleReader.num_bytes`."""
        return sum(map(self.inner.num_bytes, samples.samples))


@dataclass(frozen=True, slots=True)
class PackSchedule:
    """All packs of an epoch, and the order of each epoch; see `BatchSchedule`."""

    planned: tuple[tuple[BatchGroup, int], ...]  #: (shape, place in the list of entries) of each sample
    packs: tuple[Pack, ...]  #: of places in `planned`
    seed: int  #: of the epochs' orders
    digest: str  #: of all of it
    per_batch: int = 1  #: packs of a global batch
    packed: bool = True  #: see `PackedLatents`
    before: int = 0  #: packs more than `per_batch` a batch that come before every batch; fewer where it is below 0

    @property
    def batches_per_epoch(self) -> float:
        """See `BatchSchedule`."""
        return len(self.packs) / self.per_batch

    @property
    def batch_size(self) -> float:
        """See `BatchSchedule`."""
        return len(self.planned) / self.batches_per_epoch

    def samples(self, index: int, rank: int, num_ranks: int) -> Packs:
        """See `BatchSchedule.samples`."""
        packs = [[self.pack(one) for one in self._numbers(index, each, num_ranks)] for each in range(num_ranks)]
        found = self.together(packs[rank])
        # One by one, all ranks call the model as often as the one that has most samples.
        most = max(sum(len(one.samples) for one in share) for share in packs)
        return found if self.packed else found._replace(apart=most)

    def largest(self, num_ranks: int) -> Iterable[Packs]:
        """See `BatchSchedule.largest`."""
        return (self.together([one] * (self.per_batch // num_ranks)) for one in self.packs)

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData.position`; it is of one part, and moves on pack by pack."""
        epoch, place = divmod(self._numbers(index, 0, 1).start, len(self.packs))
        read = epoch * len(self.planned) + sum(len(self.packs[one].samples) for one in self._order(epoch)[:place])
        return {"packs": ReadPosition(read, len(self.planned), self.digest)}

    def at(self, first: int, places: Mapping[str, int]) -> Self:
        """See `BatchSchedule.at`; where the packs are others, it goes on with the next one that is whole."""
        epoch, left = divmod(places.get("packs", 0), len(self.planned))
        ends = list(accumulate((len(self.packs[one].samples) for one in self._order(epoch)), initial=0))
        return replace(self, before=epoch * len(self.packs) + bisect_left(ends, left) - first * self.per_batch)

    def pack(self, number: int) -> Pack:
        """Pack `number` since the start of training."""
        epoch, place = divmod(number, len(self.packs))
        return self.packs[self._order(epoch)[place]]

    def together(self, packs: Iterable[Pack]) -> Packs:
        """The samples of some packs."""
        chosen = (self.planned[place] for one in packs for place in one.samples)
        return Packs(tuple(ShapeGroup((sample,), group.samples[0]) for group, sample in chosen))

    def _numbers(self, index: int, rank: int, num_ranks: int) -> range:
        """Which packs a rank has of batch `index`."""
        share = self.per_batch // num_ranks
        first = self.before + index * self.per_batch + rank * share
        return range(first, first + share)

    def _order(self, epoch: int) -> tuple[int, ...]:
        return _permutation(len(self.packs), self.seed, "packs", epoch)


class PackedLatents(ScheduledData[Packs]):
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

    size_name = "packs"

    def __init__(
        self,
        *,
        data: ListedData,
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
        super().__init__(
            num_workers=data.num_workers,
            max_bad_in_a_row=data.max_bad_in_a_row,
            max_ahead_gb=data.max_ahead_gb,
            max_memory_share=data.max_memory_share,
        )
        self.data, self.budget_tokens, self.packs, self.patch = data, budget_tokens, packs, patch
        self.lookahead, self.packed = lookahead, packed

    def mocked(self, shapes: SampleShapes) -> Self:
        """See `HasMock`."""
        found = copy.copy(self)
        found.data = self.data.mocked(shapes)
        return found

    def require_divisible(self, num_ranks: int) -> None:
        """See `ScheduledData.require_divisible`; the packs of a rank are no other's."""
        if self.packs % num_ranks:
            raise UserError(f"packs {self.packs} of a global batch cannot be divided among {num_ranks} data ranks")

    def open(self, seed: int) -> tuple[PackSchedule, PackReader]:
        """See `ScheduledData.open`. UserError if a sample is longer than the budget, or the data holds no latents."""
        reader = self.data.open(seed)[1]
        plan = self._plan_packs(reader, self.data.train_groups(), seed)
        # Another seed leaves these as they are, so that its losses can be compared.
        self._held_out = self._plan_packs(reader, self.data.held_out_groups(), 0)
        figures = measure_packing(plan.packs, self.budget_tokens)
        info(f"{figures.num_packs} packs an epoch, {figures.efficiency:.1%} of their tokens are samples")
        return replace(plan, per_batch=self.packs, packed=self.packed), PackReader(reader)

    def val_dataloader(self) -> Iterator[Batch]:
        """See `TrainingData.val_dataloader`: packs of what is held out, one a batch, the same on every rank."""
        slices = [self._held_out.together([one]) for one in self._held_out.packs]
        for batch in self.read_in_order(self.by_number().reader, slices):
            assert isinstance(batch, PackedBatch)
            yield from [batch] if self.packed else batch.unpack()

    def _plan_packs(self, reader: EntryReader, groups: Sequence[BatchGroup], seed: int) -> PackSchedule:
        together = [(group, sample) for group in groups for sample in group.samples]
        mixed = [together[place] for place in _permutation(len(together), seed, "samples")]
        lengths, asked = {}, dict[str, tuple[torch.dtype, tuple[int, ...]]]()  # in tokens; of each member
        for group in groups:
            layout = reader.layout(group.samples[0])
            if "latents" not in layout:
                raise UserError("packing needs cached latents; run the encode step on these shards first")
            for name in self.data.members:
                first, other = asked.setdefault(name, layout[name]), layout[name]
                if first != other:
                    raise UserError(
                        f"samples that are packed need {name} of one shape, whatever that of their latents is: "
                        f"{first[0]} {first[1]} and {other[0]} {other[1]} cannot be one tensor; pad them when the "
                        f"shards are written, train in buckets, or leave {name} out of `members`"
                    )
            sides = zip(layout["latents"][1][1:], self.patch, strict=True)
            lengths[group.name] = math.prod(-(-length // patch) for length, patch in sides)
        try:
            packs = pack([lengths[group.name] for group, _ in mixed], self.budget_tokens, lookahead=self.lookahead)
        except ValueError as error:
            raise UserError(
                f"{error}; raise budget_tokens, or drop such samples. Shapes and their tokens:  {lengths}"
            ) from error
        keys = [entry.key for entry in reader.entries([sample for _, sample in mixed])]
        return PackSchedule(tuple(mixed), tuple(packs), seed, sha256_text(f"{seed} {packs} {keys}")[:16])


@lru_cache(maxsize=8)
def _permutation(count: int, seed: int, *names: str | int) -> tuple[int, ...]:
    return tuple(torch.randperm(count, generator=generator(seed, "packing", *names)).tolist())
