"""Mixes several sources by their weights into one stream of batches, each of one source.

A batch is never mixed, since its samples share a shape: images and videos alternate. The source of global batch g
follows from the weights, the seed and g (`weighted_turns.py`). So the state of a blend is g, like that of every source.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite
from typing import Any, Self

from nemo_vfm.core.log import info
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.training_data import ReadPosition
from nemo_vfm.data.batching.batch_source import BatchSchedule, Loaded, SampleReader
from nemo_vfm.data.batching.sample_shapes import HasMock, SampleShapes
from nemo_vfm.data.batching.weighted_turns import WeightedTurns, shares
from nemo_vfm.data.loader.listed_data import ListedData
from nemo_vfm.data.loader.scheduled_data import ScheduledData

#: The place of a source, and which samples of it, in its own words.
Part = tuple[int, Any]


@dataclass(slots=True)
class BlendReader:
    """Lets the source of a batch read it; see `SampleReader`."""

    readers: Sequence[SampleReader[Any]]
    is_light: bool  #: where all are

    def read(self, index: int, samples: Part) -> Loaded:
        """See `SampleReader.read`."""
        return self.readers[samples[0]].read(index, samples[1])

    def num_bytes(self, samples: Part) -> int:
        """See `SampleReader.num_bytes`."""
        return self.readers[samples[0]].num_bytes(samples[1])


@dataclass(frozen=True, slots=True)
class BlendSchedule:
    """Whose turn each batch is, and which samples of it; see `BatchSchedule`."""

    parts: Mapping[str, BatchSchedule[Any]]
    turns: WeightedTurns
    first: int = 0  #: number of the batch that has the first turn

    @property
    def batches_per_epoch(self) -> float:
        """Until the source that takes longest has given each of its samples once; others come again meanwhile."""
        parts = zip(self.parts.values(), self.turns.shares, strict=True)
        return max(float(part.batches_per_epoch) / float(share) for part, share in parts)

    @property
    def batch_size(self) -> float:
        """See `BatchSchedule`."""
        parts = zip(self.parts.values(), self.turns.shares, strict=True)
        return sum(float(share) * float(part.batch_size) for part, share in parts)

    def samples(self, index: int, rank: int, num_ranks: int) -> Part:
        """See `BatchSchedule.samples`."""
        which, number = self.turns.turn(index - self.first)
        return which, list(self.parts.values())[which].samples(number, rank, num_ranks)

    def largest(self, num_ranks: int) -> Iterable[Part]:
        """See `BatchSchedule.largest`."""
        return ((w, samples) for w, part in enumerate(self.parts.values()) for samples in part.largest(num_ranks))

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData.position`; its parts are those of the sources."""
        return {
            f"{name}/{part}": read
            for which, (name, source) in enumerate(self.parts.items())
            for part, read in source.position(self.turns.count(which, index - self.first)).items()
        }

    def at(self, first: int, places: Mapping[str, int]) -> Self:
        """See `BatchSchedule.at`: the order of the blend restarts, and each source continues from its position."""
        own = {
            name: {p.removeprefix(f"{name}/"): place for p, place in places.items() if p.startswith(f"{name}/")}
            for name in self.parts
        }
        return replace(self, first=first, parts={name: part.at(0, own[name]) for name, part in self.parts.items()})


@dataclass(frozen=True, slots=True)
class BlendSource:
    """One of the sources of a blend.

    Args:
        data: where its batches come from; it has no workers of its own.
        weight: how many batches it gives for each of the others' weights; only the ratio matters.
    """

    data: ScheduledData[Any]
    weight: float = 1.0


class Blend(ScheduledData[Part]):
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
        sources: Mapping[str, BlendSource],
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
        if busy := [name for name, source in sources.items() if source.data.num_workers]:
            raise ValueError(
                f"source {busy[0]} sets num_workers; set it on the blend instead, since the blend reads ahead"
            )
        if any(isinstance(source.data, ListedData) and source.data.fetches_together for source in sources.values()):
            raise ValueError("sources of a blend cannot set fetch_together: each would exchange data in its own order")
        # The number as it was written: 0.1 is a tenth here, not the nearest float.
        weights = [Fraction(str(one.weight)) if isfinite(one.weight) else Fraction(0) for one in sources.values()]
        self._shares = dict(zip(sources, shares(weights), strict=True))
        super().__init__(
            num_workers=num_workers,
            max_bad_in_a_row=max_bad_in_a_row,
            max_ahead_gb=max_ahead_gb,
            max_memory_share=max_memory_share,
        )
        self.sources = dict(sources)

    def mocked(self, shapes: SampleShapes) -> Self:
        """See `HasMock`; ValueError if a source is of a class that cannot."""
        found, made = copy.copy(self), dict[str, BlendSource]()
        for name, source in self.sources.items():
            data = source.data.mocked(shapes) if isinstance(source.data, HasMock) else None
            if not isinstance(data, ScheduledData):
                raise ValueError(f"source {name} is a {type(source.data).__name__}, which cannot make samples up")
            made[name] = replace(source, data=data)
        found.sources = made
        return found

    def open(self, seed: int) -> tuple[BlendSchedule, BlendReader]:
        """See `ScheduledData.open`; a source that cannot be started raises as it does alone."""
        for name, source in self.sources.items():
            source.data.start(seed=derive(seed, "source", name), first_batch=0)
        started = {name: source.data.by_number() for name, source in self.sources.items()}
        info("batches by source: " + ", ".join(f"{name} {float(share):.1%}" for name, share in self._shares.items()))
        parts = {name: batches.schedule for name, batches in started.items()}
        turns = WeightedTurns(list(self._shares.values()), seed=seed)
        readers = [batches.reader for batches in started.values()]
        return BlendSchedule(parts, turns), BlendReader(readers, all(reader.is_light for reader in readers))

    def require_divisible(self, num_ranks: int) -> None:
        """See `ScheduledData.require_divisible`: those of every source."""
        for source in self.sources.values():
            source.data.require_divisible(num_ranks)

    def batch_sizes(self) -> dict[str, int]:
        """See `HasBatchSizes`."""
        return {
            f"sources.{name}.data.{where}": size
            for name, source in self.sources.items()
            for where, size in source.data.batch_sizes().items()
        }

    def batching(self) -> Json:
        """See `ResumableData`."""
        shares = {name: str(share) for name, share in self._shares.items()}
        return {"shares": shares, "sources": {name: one.data.batching() for name, one in self.sources.items()}}

    def with_batching(self, batching: Json) -> Self:
        """See `ResumableData`."""
        if gone := batching["sources"].keys() - self.sources.keys():
            raise ValueError(f"source {sorted(gone)[0]} is no longer part of the blend")
        found = self.starting(self._begins, self._places)
        found.sources = {
            name: replace(self.sources[name], data=self.sources[name].data.with_batching(one))
            for name, one in batching["sources"].items()
        }
        found._shares = {name: Fraction(share) for name, share in batching["shares"].items()}
        return found

    def val_dataloader(self) -> Iterator[Batch]:
        """See `TrainingData.val_dataloader`: of every source, one after another, numbered through."""
        held_out = (batch for source in self.sources.values() for batch in source.data.val_dataloader())
        return (replace(batch, index=index) for index, batch in enumerate(held_out))
