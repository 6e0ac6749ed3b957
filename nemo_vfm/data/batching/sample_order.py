"""Computes which samples are in global batch g, from the seed and g alone.

Every bucket has an endless stream of samples, epoch after epoch, with a new shuffle each epoch. Batch j of a bucket is
the j-th piece of that stream. So every sample comes exactly once in each epoch of its bucket. The first samples of the
next epoch fill up the last batch. Epoch e of the whole holds those batches of every bucket that begin in its epoch e.
The buckets alternate in shuffled order; the batches of one bucket keep their order.

A run with another batch size resumes in the middle of these streams: an order may begin at any position of each.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.training_data import ReadPosition


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """Samples that may share a batch: all have one shape."""

    name: str  #: of the bucket; the shuffle depends on it, not on which other groups there are
    samples: tuple[int, ...]  #: positions in the list of entries
    batch_size: int  #: samples of a global batch

    def __post_init__(self) -> None:
        if not self.samples or self.batch_size < 1:
            raise ValueError(
                f"group {self.name} has {len(self.samples)} samples and batch_size {self.batch_size}, "
                "expected at least 1 of each"
            )


class ShapeGroup(NamedTuple):
    """Samples of one shape, by their places in the list of entries."""

    ids: tuple[int, ...]
    like: int  #: a sample of their group, whose shape all of it have


class Order:
    """Which samples make up global batch g; a pure function of (seed, g) and the groups. See `BatchSchedule`.

    Args:
        groups: the samples by shape.
        seed: of the shuffles.
        shuffle: False keeps the order of the shards, group after group.
        digests: a hash of each group's samples and their order, by name.
        first: number of the first global batch.
        places: samples of each group, by name, that were read before it; None is none.
    """

    def __init__(
        self, groups: Sequence[BatchGroup], *, seed: int, shuffle: bool = True, digests: Mapping[str,
        str] | None = None,
        first: int = 0, places: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        if not groups:
            raise ValueError("there is no group of samples, but at least one is needed; give data with samples")
        self.groups, self._seed, self._shuffle, self._digests = tuple(groups), seed, shuffle, digests or {}
        self._how = partial(type(self), self.groups, seed=seed, shuffle=shuffle, digests=self._digests)
        self._first, self._places = first, dict(places or {})
        self._begins = [self._places.get(group.name, 0) for group in groups]
        self.batches_per_epoch = sum((Fraction(len(g.samples), g.batch_size) for g in groups), Fraction(0))
        # A batch touches at most two epochs of its group, unless the group is smaller than a batch.
        self._shuffled = lru_cache(maxsize=4 * len(groups))(self._permutation)
        self._batches = lru_cache(maxsize=2)(self._batches_uncached)

    def __reduce__(self) -> tuple[Any, ...]:  # without what is cached
        return partial(self._how, first=self._first, places=self._places), ()

    @property
    def batch_size(self) -> Fraction:
        """Samples of a global batch, on average."""
        return sum(len(group.samples) for group in self.groups) / self.batches_per_epoch

    def at(self, first: int, places: Mapping[str, int]) -> "Order":
        """See `BatchSchedule.at`; its parts are the groups."""
        return self._how(first=first, places=places)

    def samples(self, index: int, rank: int, num_ranks: int) -> ShapeGroup:
        """See `BatchSchedule.samples`."""
        group, samples = self.batch(index)
        share = len(samples) // num_ranks
        return ShapeGroup(tuple(samples[rank * share : (rank + 1) * share]), group.samples[0])

    def largest(self, num_ranks: int) -> list[ShapeGroup]:
        """See `BatchSchedule.largest`: one of each group."""
        return [ShapeGroup(g.samples[:1] * (g.batch_size // num_ranks), g.samples[0]) for g in self.groups]

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData.position`."""
        places = self.places(index)
        return {g.name: ReadPosition(places[g.name], len(g.samples), self._digests[g.name]) for g in self.groups}

    def batch(self, index: int) -> tuple[BatchGroup, list[int]]:
        """The group and the samples of global batch `index`, in order."""
        epoch = self.epoch(index)
        which, number = self._batches(epoch)[index - self.batches_before(epoch)]
        group = self.groups[which]
        first = self._begins[which] + number * group.batch_size
        places = (divmod(place, len(group.samples)) for place in range(first, first + group.batch_size))
        shuffled = (self._shuffled(len(group.samples), "samples", group.name, epoch)[at] for epoch, at in places)
        return group, [group.samples[at] for at in shuffled]

    def places(self, index: int) -> dict[str, int]:
        """How many samples of each group are read before global batch `index`."""
        epoch = self.epoch(index)
        taken = self._batches(epoch)[: index - self.batches_before(epoch)]
        counts = Counter(which for which, _ in taken)
        return {
            group.name: self._begins[which] + (self._number(which, epoch) + counts[which]) * group.batch_size
            for which, group in enumerate(self.groups)
        }

    def epoch(self, index: int) -> int:
        """The epoch that global batch `index` begins in."""
        assert index >= self._first, f"batch {index} is before the first, {self._first}"
        read = sum(begin / group.batch_size for begin, group in zip(self._begins, self.groups, strict=True))
        epoch = int((index - self._first + read) / self.batches_per_epoch)
        while self.batches_before(epoch) > index:
            epoch -= 1
        while self.batches_before(epoch + 1) <= index:
            epoch += 1
        return epoch

    def batches_before(self, epoch: int) -> int:
        """The number of the first global batch that begins in an epoch."""
        return self._first + sum(self._number(which, epoch) for which in range(len(self.groups)))

    def _number(self, which: int, epoch: int) -> int:
        """How many batches of a group begin before an epoch does, from this order's beginning on."""
        group = self.groups[which]
        return max(0, -(-(epoch * len(group.samples) - self._begins[which]) // group.batch_size))

    def _batches_uncached(self, epoch: int) -> list[tuple[int, int]]:
        """Which group each batch of an epoch belongs to, shuffled, and its number there, ascending."""
        spans = [range(self._number(which, epoch), self._number(which, epoch + 1)) for which in range(len(self.groups))]
        labels = [which for which, span in enumerate(spans) for _ in span]
        numbers = [iter(span) for span in spans]
        shuffled = [labels[i] for i in self._permutation(len(labels), "batches", epoch)]
        return [(which, next(numbers[which])) for which in shuffled]

    def _permutation(self, count: int, *names: str | int) -> list[int]:
        if not self._shuffle:
            return list(range(count))
        numbers: list[int] = torch.randperm(count, generator=generator(self._seed, "order", *names)).tolist()
        return numbers
