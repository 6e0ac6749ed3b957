"""Mixes several sources by their weights into one stream of batches, each of one source.

A batch is never mixed, since its samples share a shape: images and videos alternate. The source of global batch g
follows from the weights, the seed and g (`weighted_turns.py`). So the state of a blend is g, like that of every source.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite
from typing import Protocol, Self, runtime_checkable

from torch.utils.data import Dataset

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.training_data import HasBatchSizes, ReadPosition, ResumableData, TrainingData
from nemo_vfm.data.batching.batch_source import ByNumber, Loaded
from nemo_vfm.data.batching.faults import Faults
from nemo_vfm.data.batching.weighted_turns import WeightedTurns, shares
from nemo_vfm.data.loader.batch_loader import Batches
from nemo_vfm.parallel.ranks.gather import GatherGroup


@runtime_checkable
class Blendable(ResumableData, Protocol):
    """Training data that gives any batch by its number, so that a blend can take its turn with it."""

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        """See `TrainingData.start`; `rank` of `num_ranks` gets its slice of every batch."""
        ...

    def by_number(self) -> ByNumber:
        """This rank's batches; once it is started."""
        ...

    def mean_batch_size(self) -> float:
        """Samples of a global batch, on average; once it is started."""
        ...

    def reads_ahead(self) -> bool:
        """Whether it has workers of its own, which a blend would not use."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """One of the sources of a blend.

    Args:
        data: where its batches come from; it has no workers of its own.
        weight: how many batches it gives for each of the others' weights; only the ratio matters.
    """

    data: Blendable
    weight: float = 1.0


class Blend:
    """Batches of several sources in turns. Weights count batches; a source's batches hold as many samples as it says.

    After g batches no source's share differs from its weight by more than 1/g. Each source has its own order and
    epochs, in which every sample comes once, whatever the others do.

    Args:
        sources: by name; the name seeds the source's own order.
        num_workers: processes that read ahead on each rank; 0 reads in the training process. The sources' are 0.
        max_bad_in_a_row: this many unreadable samples in a row stop the run.
        max_ahead_gb: what batches read ahead may fill on each rank at most, in GB (10^9 bytes).
        max_memory_share: what the workers of a machine may grow by together, of its memory; a rank's are replaced
            between batches when one of them grows by more than its part. None lets them grow.
    """

    def __init__(
        self,
        *,
        sources: Mapping[str, Source],
        num_workers: int = 0,
        max_bad_in_a_row: int = 16,
        max_ahead_gb: float = 4.0,
        max_memory_share: float | None = 0.5,
    ) -> None:
        if not sources or num_workers < 0 or max_bad_in_a_row < 1 or not max_ahead_gb > 0:
            raise ValueError(
                f"a blend needs at least one source, got {len(sources)}; num_workers ({num_workers}) must be at "
                f"least 0, max_bad_in_a_row ({max_bad_in_a_row}) at least 1, max_ahead_gb ({max_ahead_gb}) above 0"
            )
        if busy := [name for name, source in sources.items() if source.data.reads_ahead()]:
            raise ValueError(
                f"source {busy[0]} sets num_workers; set it on the blend instead, since the blend reads ahead"
            )
        if any(isinstance(source.data, GatherGroup) and source.data.fetches_together for source in sources.values()):
            raise ValueError("sources of a blend cannot set fetch_together: each would exchange data in its own order")
        self._shares = dict(zip(sources, shares([_exact(source.weight) for source in sources.values()]), strict=True))
        self.sources, self.num_workers = dict(sources), num_workers
        if max_memory_share is not None and not 0 < max_memory_share <= 1:
            raise ValueError(f"max_memory_share must be above 0 and at most 1, or None, got {max_memory_share}")
        self.max_bad_in_a_row, self.max_ahead_gb = max_bad_in_a_row, max_ahead_gb
        self.max_memory_share = max_memory_share
        self._turns: WeightedTurns | None = None
        self._first_batch, self._begins = 0, 0
        self.faults = Faults(max_in_a_row=max_bad_in_a_row)  #: bad samples met so far

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        """See `TrainingData.start`; a rank's sources all give their slices.

        Raises:
            UserError, DataError: a source cannot be started; see there.
        """
        for name, source in self.sources.items():
            source.data.start(seed=derive(seed, "source", name), first_batch=0, rank=rank, num_ranks=num_ranks)
        self._turns, self._first_batch = WeightedTurns(list(self._shares.values()), seed=seed), first_batch
        info("batches by source: " + ", ".join(f"{name} {float(share):.1%}" for name, share in self._shares.items()))

    def batch_sizes(self) -> dict[str, int]:
        """See `HasBatchSizes`."""
        return {
            f"sources.{name}.data.{where}": size
            for name, source in self.sources.items()
            if isinstance(source.data, HasBatchSizes)
            for where, size in source.data.batch_sizes().items()
        }

    def begins(self) -> int:
        """See `ResumableData`."""
        return self._begins

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData`; its parts are those of the sources."""
        turns, done = self._started(), index - self._begins
        return {
            f"{name}/{part}": read
            for which, (name, source) in enumerate(self.sources.items())
            for part, read in source.data.position(turns.count(which, done)).items()
        }

    def starting(self, first_batch: int, places: Mapping[str, int]) -> Self:
        """See `ResumableData`: the order of the blend restarts, and each source continues from its position."""
        own = {name: {part.removeprefix(f"{name}/"): place for part, place in places.items()
                      if part.startswith(f"{name}/")} for name in self.sources}  # fmt: skip
        found = self._of({name: one.data.starting(0, own[name]) for name, one in self.sources.items()})
        found._begins = first_batch
        return found

    def batching(self) -> Json:
        """See `ResumableData`."""
        shares = {name: str(share) for name, share in self._shares.items()}
        return {"shares": shares, "sources": {name: one.data.batching() for name, one in self.sources.items()}}

    def batched(self, batching: Json) -> Self:
        """See `ResumableData`."""
        if gone := batching["sources"].keys() - self.sources.keys():
            raise ValueError(f"source {sorted(gone)[0]} is no longer part of the blend")
        found = self._of({name: self.sources[name].data.batched(one) for name, one in batching["sources"].items()})
        found._shares = {name: Fraction(share) for name, share in batching["shares"].items()}
        return found

    def _of(self, sources: Mapping[str, Blendable]) -> Self:
        """A copy that mixes these."""
        found = copy.copy(self)
        found.sources = {name: replace(self.sources[name], data=data) for name, data in sources.items()}
        found._turns = None
        return found

    def by_number(self) -> "BlendedBatches":
        """See `Blendable.by_number`."""
        parts = [source.data.by_number() for source in self.sources.values()]
        return BlendedBatches(parts, self._started(), self._begins)

    def mean_batch_size(self) -> float:
        """See `Blendable.mean_batch_size`."""
        return sum(float(share) * self.sources[name].data.mean_batch_size() for name, share in self._shares.items())

    def reads_ahead(self) -> bool:
        """See `Blendable.reads_ahead`."""
        return self.num_workers > 0

    def train_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.train_dataloader`."""
        return Batches(
            self.by_number(),
            first=self._first_batch,
            num_workers=self.num_workers,
            faults=self.faults,
            max_ahead_bytes=int(self.max_ahead_gb * 1e9),
            max_memory_share=self.max_memory_share,
        )

    def val_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.val_dataloader`: of every source, one after another, numbered through."""
        return _InARow([source.data for source in self.sources.values()])

    def batches_per_epoch(self) -> float:
        """Until the source that takes longest has given each of its samples once; others come again meanwhile."""
        self._started()
        return max(self.sources[name].data.batches_per_epoch() / float(share) for name, share in self._shares.items())

    def num_train_samples(self) -> int:
        """Samples in such an epoch, those that come again counted again."""
        return round(self.batches_per_epoch() * self.mean_batch_size())

    def _started(self) -> WeightedTurns:
        if self._turns is None:
            raise UserError("the data was read before start(seed=..., first_batch=...) was called; call it first")
        return self._turns


class BlendedBatches(Dataset[Loaded]):
    """Global batch g of a blend, by its number.

    Args:
        parts: the sources' batches.
        turns: whose turn it is.
        begins: the number of the batch that has the first turn.
    """

    def __init__(self, parts: Sequence[ByNumber], turns: WeightedTurns, begins: int = 0) -> None:
        self._parts, self._turns, self._begins = tuple(parts), turns, begins

    def __getitem__(self, index: int) -> Loaded:
        which, number = self._turns.turn(index - self._begins)
        batch, faults = self._parts[which][number]
        return replace(batch, index=index), faults

    def is_light(self) -> bool:
        """See `ByNumber.is_light`: where all are."""
        return all(part.is_light() for part in self._parts)

    def max_bytes(self) -> int:
        """See `ByNumber.max_bytes`."""
        return max(part.max_bytes() for part in self._parts)


class _InARow:
    """The held-out batches of all, the same at every iteration."""

    def __init__(self, parts: Sequence[TrainingData]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Batch]:
        held_out = (batch for part in self._parts for batch in part.val_dataloader())
        for index, batch in enumerate(held_out):
            yield replace(batch, index=index)


def _exact(weight: float) -> Fraction:
    """The number as it was written: 0.1 is a tenth here, not the nearest float."""
    return Fraction(str(weight)) if isfinite(weight) else Fraction(0)
