"""Makes training data of samples that can be listed.

Shards, folders of videos and tables share this code: only where the samples lie differs between them.
"""

import math
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.batching.faults import Fault
from nemo_vfm.data.batching.sample_order import Alike, Group, Order
from nemo_vfm.data.loader.collate import collate
from nemo_vfm.data.loader.fetch_exchange import Exchange, Spanned, Traffic
from nemo_vfm.data.loader.scheduled_data import ScheduledData
from nemo_vfm.data.loader.shared_fetch import HeldSamples, UniqueBatches
from nemo_vfm.data.shards.sample_reader import Census, Layout, Loading, Samples, loading
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.data.shards.shard_folder import is_held_out, warn_that_none_is_held_out
from nemo_vfm.data.video.decode import Decoder
from nemo_vfm.parallel.ranks.gather import Gather

_MAX_WEIGHT = 1000  # more is a damaged index


class EntryReader:
    """Reads samples by their places in a list of entries."""

    def __init__(self, loading: Loading, entries: Sequence[Entry]) -> None:
        self._loading, self._entries, self._sizes = loading, entries, dict[int, int]()
        self.is_light = loading.is_light

    def read(self, index: int, samples: Alike) -> tuple[VideoBatch, list[Fault | None]]:
        """See `SampleReader.read`."""
        return collate(index, self.entries(samples.ids), self._loading.load, self.layout(samples.like))

    def entries(self, ids: Sequence[int]) -> list[Entry]:
        """The samples, by their places in the list."""
        return [self._entries[sample] for sample in ids]

    def layout(self, like: int) -> Layout:
        """What every sample of the group of this one looks like."""
        return self._loading.layout(self._entries[like])

    def num_bytes(self, samples: Alike) -> int:
        """See `SampleReader.num_bytes`."""
        if samples.like not in self._sizes:
            layout = self.layout(samples.like).values()
            self._sizes[samples.like] = sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout)
        return len(samples.ids) * self._sizes[samples.like]


class ListedData(ScheduledData[Alike]):
    """Batches from samples that are listed when the data is opened.

    The samples of global batch g are a function of the samples, the seed and g: not of workers, ranks or resumes.
    """

    fetches_together = False  #: whether ranks that get the same slice fetch it together, where there are several

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
        super().__init__(
            num_workers=num_workers,
            max_bad_in_a_row=max_bad_in_a_row,
            max_ahead_gb=max_ahead_gb,
            max_memory_share=max_memory_share,
        )
        self.batch_size, self.val_fraction, self.decoder = batch_size, val_fraction, decoder
        self.buckets, self.shuffle = buckets, shuffle
        self._opened: _Opened | None = None
        self._sizes: Mapping[str, int] = {}
        self._peers: Gather | None = None
        self.traffic = Traffic()  #: bytes fetched and gathered by a rank that has peers

    @abstractmethod
    def _samples(self) -> Samples:
        """Open what the batches are made of; called once."""

    def share_with(self, peers: Gather) -> None:
        """Let each of `peers`, which get the same slice, such as tensor-parallel ranks, fetch another part of it."""
        self._peers = peers

    def open(self, seed: int) -> tuple[Order, EntryReader]:
        """See `ScheduledData.open`."""
        opened = self._open()
        digests = {
            name: sha256_text(f"{seed} {self.shuffle} {name} {digest}")[:16] for name, digest in opened.digests.items()
        }
        return Order(self.train_groups(), seed=seed, shuffle=self.shuffle, digests=digests), opened.reader

    def require_divisible(self, num_ranks: int) -> None:
        """See `ScheduledData.require_divisible`."""
        for group in self.train_groups():
            if group.batch_size % num_ranks:
                raise UserError(f"batch_size {group.batch_size} of {group.name} is not divisible by {num_ranks} ranks")

    def train_groups(self) -> list[Group]:
        """The samples that are trained on, by shape."""
        return [replace(g, batch_size=self._sizes.get(g.name, g.batch_size)) for g in self._open().train]

    def held_out_groups(self) -> list[Group]:
        """The samples that are held out, by shape."""
        return self._open().val

    def num_train_samples(self) -> int:
        """See `TrainingData.num_train_samples`; also before it is started."""
        return sum(len(group.samples) for group in self.train_groups())

    def batch_sizes(self) -> dict[str, int]:
        """See `HasBatchSizes`: the general size, and those of buckets that have their own."""
        buckets = self.buckets.buckets if self.buckets is not None else {}
        own = {f"buckets.{name}.batch_size": b.batch_size for name, b in buckets.items() if b.batch_size is not None}
        return {"batch_size": self.batch_size, **own}

    def batching(self) -> dict[str, int]:
        """See `ResumableData`: the batch size of each shape."""
        return {group.name: group.batch_size for group in self.train_groups()}

    def batched(self, batching: Json) -> Self:
        """See `ResumableData`."""
        if other := batching.keys() ^ {group.name for group in self._open().train}:
            raise ValueError(f"the shapes of samples have changed: {', '.join(sorted(other)[:4])}")
        found = self.starting(self._begins, self._places)
        found._sizes = dict(batching)
        return found

    def train_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.train_dataloader`: with peers the same batches, of bytes that they fetch together."""
        if self._peers is None:
            return super().train_dataloader()
        batches, opened = self.by_number(), self._open()
        schedule, rank, num_ranks = batches.schedule, batches.rank, batches.num_ranks
        if not isinstance(opened.samples, HeldSamples):
            raise UserError(
                f"{opened.samples.folder} cannot be fetched in parts; ranks that share their data need shards"
            )
        return UniqueBatches(
            batches,
            lambda index: opened.reader.entries(schedule.samples(index, rank, num_ranks).ids),
            opened.samples,
            Exchange(opened.samples.inner, self._peers, self.traffic),
            first=self._first_batch,
            num_workers=self.num_workers,
            faults=self.faults,
            max_ahead_bytes=int(self.max_ahead_gb * 1e9),
        )

    def val_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.val_dataloader`; the same on every rank, the last batch of a group may be smaller."""
        opened = self._open()
        slices = [
            Alike(group.samples[first : first + group.batch_size], group.samples[0])
            for group in opened.val
            for first in range(0, len(group.samples), group.batch_size)
        ]
        return self.read_in_order(opened.reader, slices)

    def _open(self) -> "_Opened":
        if self._opened is None:
            self._opened = _Opened(self, self._samples())
        return self._opened


class _Opened:
    """The samples, split into training, held-out and unusable."""

    def __init__(self, data: ListedData, samples: Samples) -> None:
        self.samples = HeldSamples(samples, data.traffic) if isinstance(samples, Spanned) else samples
        how = loading(self.samples, data.buckets, data.decoder)
        self.reader = EntryReader(how, samples.entries)
        places, left_out = _grouped(samples.entries, how)
        if left_out:
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
            of = f"{left_out.total()} of {len(samples.entries)} samples in {samples.folder}"
            warn(f"{of} cannot be trained on: {counts}")
        census = Census()
        for entry in samples.entries:
            census.add(samples, entry)
        census.tell(str(samples.folder))
        held_out = {i for group in places.values() for i in group if is_held_out(samples.entries[i], data.val_fraction)}
        self.train, self.val = (
            [
                Group(name, tuple(chosen), how.batch_size_of(name) or data.batch_size)
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
        # Of each group's keys, in their order.
        self.digests = {
            group.name: sha256_text("".join(f"{samples.entries[sample].key}\n" for sample in group.samples))
            for group in self.train
        }
        trained = sum(len(group.samples) for group in self.train)
        info(f"{trained:,} samples to train on, {len(held_out):,} held out, shapes: {len(places)}")
        if data.val_fraction and not held_out:
            warn_that_none_is_held_out()


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
