"""Builds global batches for training, and fixed ones for validation, from samples that can be listed.

Shards, folders of videos and tables share this code: only where the samples are stored differs between them.
"""

import copy
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Self

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.training_data import ReadPosition
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.batching.faults import Faults
from nemo_vfm.data.batching.sample_order import Group, Order
from nemo_vfm.data.loader.batch_loader import Batches, BatchReader, GlobalBatches
from nemo_vfm.data.loader.fetch_exchange import Exchange, Traffic
from nemo_vfm.data.loader.fetch_plan import Spanned
from nemo_vfm.data.loader.shared_fetch import HeldSamples, UniqueBatches
from nemo_vfm.data.shards.held_out import is_held_out, warn_that_none_is_held_out
from nemo_vfm.data.shards.sample_census import Census
from nemo_vfm.data.shards.sample_reader import Loading, Samples, loading
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.data.video.decode import Decoder
from nemo_vfm.parallel.ranks.gather import Gather

_MAX_WEIGHT = 1000  # more is a damaged index


class Feed(ABC):
    """Batches from samples that are listed when the data is opened.

    The samples of global batch g are a function of the samples, the seed and g: not of workers, ranks or resumes.

    Args:
        batch_size: samples of a global batch, over all ranks; a bucket's own batch_size goes before it.
        num_workers: processes that read ahead on each rank; 0 reads in the training process.
        val_fraction: share of the samples that is held out, at least 0 and below 1; which part a sample is in follows
            from its key, and from its clip's where it is a window of one.
        buckets: the shapes; None is for cached latents only, whose shapes are what they are.
        shuffle: False gives the samples in the order of the list.
        max_bad_in_a_row: this many unreadable samples in a row stop the run.
        max_ahead_gb: what batches read ahead may fill on each rank at most, in GB (10^9 bytes).
        max_memory_share: what the workers of a machine may grow by together, of its memory; a rank's are replaced
            between batches when one of them grows by more than its part. None lets them grow.
        decoder: who reads videos.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        num_workers: int,
        val_fraction: float,
        buckets: Buckets | None,
        shuffle: bool,
        max_bad_in_a_row: int,
        max_ahead_gb: float,
        max_memory_share: float | None,
        decoder: Decoder,
    ) -> None:
        if batch_size < 1 or num_workers < 0 or max_bad_in_a_row < 1:
            raise ValueError(
                f"batch_size ({batch_size}) and max_bad_in_a_row ({max_bad_in_a_row}) must be at least 1, "
                f"num_workers ({num_workers}) at least 0"
            )
        if not 0 <= val_fraction < 1:
            raise ValueError(f"val_fraction must be at least 0 and below 1, got {val_fraction}")
        if not max_ahead_gb > 0:
            raise ValueError(f"max_ahead_gb must be above 0, got {max_ahead_gb}")
        if max_memory_share is not None and not 0 < max_memory_share <= 1:
            raise ValueError(f"max_memory_share must be above 0 and at most 1, or None, got {max_memory_share}")
        self.batch_size, self.num_workers, self.val_fraction = batch_size, num_workers, val_fraction
        self.buckets, self.shuffle, self.max_bad_in_a_row = buckets, shuffle, max_bad_in_a_row
        self.max_ahead_gb, self.max_memory_share, self.decoder = max_ahead_gb, max_memory_share, decoder
        self._opened: _Opened | None = None
        self._order: Order | None = None
        self._first_batch, self._rank, self._num_ranks = 0, 0, 1
        self._seed, self._begins, self._places, self._sizes = 0, 0, dict[str, int](), dict[str, int]()
        self._peers: Gather | None = None
        self.traffic = Traffic()  #: bytes fetched and gathered by a rank that has peers
        self.faults = Faults(max_in_a_row=max_bad_in_a_row)  #: bad samples met so far

    @abstractmethod
    def _samples(self) -> Samples:
        """Open what the batches are made of; called once."""

    fetches_together = False  #: whether ranks that get the same slice fetch it together, where there are several

    def share_with(self, peers: Gather) -> None:
        """Let each of the ranks that get the same slice, such as tensor-parallel ones, fetch another part of it.

        Args:
            peers: these ranks; without, each fetches all of it alone (`unique.py`).
        """
        self._peers = peers

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        """See `TrainingData.start`; `rank` of `num_ranks` data-parallel ranks gets its slice of every batch.

        Raises:
            UserError: there are no samples, or a batch size is not divisible by the number of ranks.
            DataError: the samples' index is damaged.
        """
        groups = [replace(g, batch_size=self._sizes.get(g.name, g.batch_size)) for g in self._open().train]
        for group in groups:
            if group.batch_size % num_ranks:
                raise UserError(f"batch_size {group.batch_size} of {group.name} is not divisible by {num_ranks} ranks")
        self._order = Order(groups, seed=seed, shuffle=self.shuffle, first=self._begins, places=self._places)
        self._seed = seed
        self._first_batch, self._rank, self._num_ranks = first_batch, rank, num_ranks

    def batch_sizes(self) -> dict[str, int]:
        """See `HasBatchSizes`: the general size, and those of buckets that have their own."""
        buckets = self.buckets.buckets if self.buckets is not None else {}
        own = {f"buckets.{name}.batch_size": b.batch_size for name, b in buckets.items() if b.batch_size is not None}
        return {"batch_size": self.batch_size, **own}

    def begins(self) -> int:
        """See `ResumableData`."""
        return self._begins

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData`; its parts are the shapes."""
        order = self._started()
        places, opened = order.places(index), self._open()
        return {
            group.name: ReadPosition(
                places[group.name], len(group.samples),
                sha256_text(f"{self._seed} {self.shuffle} {group.name} {opened.digests[group.name]}")[:16],
            )
            for group in order.groups
        }  # fmt: skip

    def starting(self, first_batch: int, places: Mapping[str, int]) -> Self:
        """See `ResumableData`."""
        found = copy.copy(self)
        found._begins, found._places, found._order = first_batch, dict(places), None
        return found

    def batching(self) -> dict[str, int]:
        """See `ResumableData`: the batch size of each shape."""
        return {group.name: group.batch_size for group in self._started().groups}

    def batched(self, batching: Json) -> Self:
        """See `ResumableData`."""
        if other := batching.keys() ^ {group.name for group in self._open().train}:
            raise ValueError(f"the shapes of samples have changed: {', '.join(sorted(other)[:4])}")
        found = copy.copy(self)
        found._sizes, found._order = dict(batching), None
        return found

    def by_number(self) -> GlobalBatches:
        """See `Blendable.by_number`."""
        return GlobalBatches(self._open().reader, self._started(), rank=self._rank, num_ranks=self._num_ranks)

    def reader(self) -> BatchReader:
        """Reads any of the samples."""
        return self._open().reader

    def train_groups(self) -> tuple[Group, ...]:
        """The samples that are trained on, by shape."""
        return tuple(self._open().train)

    def held_out_groups(self) -> tuple[Group, ...]:
        """The samples that are held out, by shape."""
        return tuple(self._open().val)

    def mean_batch_size(self) -> float:
        """See `Blendable.mean_batch_size`."""
        return float(self.num_train_samples() / self._started().batches_per_epoch)

    def reads_ahead(self) -> bool:
        """See `Blendable.reads_ahead`."""
        return self.num_workers > 0

    def train_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.train_dataloader`."""
        if self._peers is not None:
            return self._shared(self._peers)
        return Batches(
            self.by_number(),
            first=self._first_batch,
            num_workers=self.num_workers,
            faults=self.faults,
            max_ahead_bytes=int(self.max_ahead_gb * 1e9),
            max_memory_share=self.max_memory_share,
        )

    def _shared(self, peers: Gather) -> Iterable[Batch]:
        """The same batches, of bytes that the peers fetch together."""
        samples = self._open().samples
        if not isinstance(samples, HeldSamples):
            raise UserError(f"{samples.folder} cannot be fetched in parts; ranks that share their data need shards")
        return UniqueBatches(
            self.by_number(),
            samples,
            Exchange(samples.inner, peers, self.traffic),
            first=self._first_batch,
            num_workers=self.num_workers,
            faults=self.faults,
            max_ahead_bytes=int(self.max_ahead_gb * 1e9),
        )

    def val_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.val_dataloader`; the same on every rank, the last batch of a group may be smaller."""
        opened = self._open()
        return _HeldOut(opened.reader, opened.val, self.max_bad_in_a_row)

    def batches_per_epoch(self) -> float:
        """See `TrainingData.batches_per_epoch`."""
        return float(self._started().batches_per_epoch)

    def num_train_samples(self) -> int:
        """See `TrainingData.num_train_samples`."""
        return sum(len(group.samples) for group in self._open().train)

    def _started(self) -> Order:
        if self._order is None:
            raise UserError("the data was read before start(seed=..., first_batch=...) was called; call it first")
        return self._order

    def _open(self) -> "_Opened":
        if self._opened is None:
            self._opened = _Opened(self, self._samples())
        return self._opened


class _Opened:
    """The samples, split into training, held-out and unusable."""

    def __init__(self, feed: Feed, samples: Samples) -> None:
        self.samples = HeldSamples(samples, feed.traffic) if isinstance(samples, Spanned) else samples
        how = loading(self.samples, feed.buckets, feed.decoder)
        self.reader = BatchReader(how, samples.entries)
        places, left_out = _grouped(samples.entries, how)
        if left_out:
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
            of = f"{left_out.total()} of {len(samples.entries)} samples in {samples.folder}"
            warn(f"{of} cannot be trained on: {counts}")
        census = Census()
        for entry in samples.entries:
            census.add(samples, entry)
        census.tell(str(samples.folder))
        held_out = {i for group in places.values() for i in group if is_held_out(samples.entries[i], feed.val_fraction)}
        self.train, self.val = (
            [
                Group(name, tuple(chosen), how.batch_size_of(name) or feed.batch_size)
                for name, group in sorted(places.items())
                if (chosen := [
                    place
                    for i in group
                    if (i in held_out) == is_val
                    for place in [i] * (1 if is_val else _times(samples.entries[i]))
                ])
            ]
            for is_val in (False, True)
        )  # fmt: skip
        if not self.train:
            raise UserError(
                f"no sample in {samples.folder} is left to train on; see the reasons above, or lower val_fraction"
            )
        self.digests = {group.name: _digest(samples.entries, group) for group in self.train}
        trained = sum(len(group.samples) for group in self.train)
        info(f"{trained:,} samples to train on, {len(held_out):,} held out, shapes: {len(places)}")
        if feed.val_fraction and not held_out:
            warn_that_none_is_held_out()


def _digest(entries: Sequence[Entry], group: Group) -> str:
    """Of a group's keys, in their order; a million take 0.5 s (1 busy core, 2026-11)."""
    digest = sha256()
    for sample in group.samples:
        digest.update(f"{entries[sample].key}\n".encode())
    return digest.hexdigest()


def _times(entry: Entry) -> int:
    """How often a sample comes in an epoch: the weight of its clip (docs/how-to/video/decisions.md), else once."""
    weight = entry.index.get("weight", 1)
    return weight if type(weight) is int and 1 <= weight <= _MAX_WEIGHT else 1


def _grouped(entries: Sequence[Entry], how: Loading) -> tuple[dict[str, list[int]], Counter[str]]:
    places: defaultdict[str, list[int]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for number, entry in enumerate(entries):
        name, reason = how.group_of(entry)
        if name is None:
            left_out[reason] += 1
        else:
            places[name].append(number)
    return dict(places), left_out


class _HeldOut:
    """The same batches at every iteration, in the order of the list."""

    def __init__(self, reader: BatchReader, groups: Sequence[Group], max_bad_in_a_row: int) -> None:
        self._reader, self._groups, self._max_bad_in_a_row = reader, groups, max_bad_in_a_row

    def __iter__(self) -> Iterator[Batch]:
        faults, index = Faults(max_in_a_row=self._max_bad_in_a_row), 0
        for group in self._groups:
            for first in range(0, len(group.samples), group.batch_size):
                batch, found = self._reader.read(index, group, group.samples[first : first + group.batch_size])
                faults.count(found)
                index += 1
                yield batch
