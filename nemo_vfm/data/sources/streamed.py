"""Reads tars without an index, here or in an object store, from front to back into training batches.

It has three costs against indexed shards. An epoch shuffles the tars, but within them only blocks of `shuffle_buffer`
samples. Every rank reads all bytes. A resume reads up to its position, except for tars whose count is known.
"""

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import torch

from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.storage.object_store import items
from nemo_vfm.core.storage.uri import Address, Place, local, place, places
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.core.types.training_data import ReadPosition
from nemo_vfm.data.batching.batch_source import Loaded
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.batching.faults import Fault
from nemo_vfm.data.batching.sample_shapes import SampleShapes
from nemo_vfm.data.loader.collate import collate
from nemo_vfm.data.loader.scheduled_data import ScheduledData
from nemo_vfm.data.shards.read_in_place import Rows
from nemo_vfm.data.shards.sample_reader import CachedLatents, Layout, LoadedSample, Media
from nemo_vfm.data.shards.shard_paths import expand_braces
from nemo_vfm.data.shards.tar_order import TarCounts, TarOrder
from nemo_vfm.data.shards.tar_stream import Raw, Tar, placed_tar, samples_of

if TYPE_CHECKING:
    from nemo_vfm.data.sources.shard_data import ShardData

_ON_THE_WAY = 256  # batches that are read to get at a later one; for one further on the stream begins anew


class Slice(NamedTuple):
    """A rank's part of the samples that a batch takes out of the stream."""

    first: int  #: number of the batch's first sample
    rank: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class TarSchedule:
    """Batches of equal size, one after another out of a stream; see `BatchSchedule`."""

    order: TarOrder
    batch_size: int  #: samples of a global batch
    first: int = 0  #: number of the first global batch
    before: int = 0  #: samples that come before it

    @property
    def batches_per_epoch(self) -> Fraction:
        """See `BatchSchedule`. UserError if some tar was never read to its end, so nobody knows."""
        total = self.order.known_total()
        if total is None:
            raise UserError(
                "the number of samples is unknown until the tars have been read once; give the duration in steps, "
                "or give `counts` from a run that has read them all"
            )
        return Fraction(total, self.batch_size)

    def samples(self, index: int, rank: int, num_ranks: int) -> Slice:
        """See `BatchSchedule.samples`."""
        return Slice(self.before + (index - self.first) * self.batch_size, rank, num_ranks)

    def largest(self, num_ranks: int) -> list[Slice]:
        """See `BatchSchedule.largest`; all are alike."""
        return [Slice(0, 0, num_ranks)]

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData.position`; it is of one part."""
        read = self.samples(index, 0, 1).first
        return {"tars": ReadPosition(read, self.order.known_total() or 0, self.order.digest())}

    def at(self, first: int, places: Mapping[str, int]) -> Self:
        """See `BatchSchedule.at`."""
        return replace(self, first=first, before=places.get("tars", 0))


class TarReader:
    """Reads slices of a stream; threads that ask for one batch after another share one pass over the tars.

    Args:
        order: of the stream.
        batch_size: samples of a global batch.
        bucket: what videos and pictures are cut to; None takes the shape of the first latents.
        first: some samples; the first good one says what all look like.
        decoder: who reads videos.
    """

    is_light = True

    def __init__(
        self, order: TarOrder, batch_size: int, bucket: Bucket | None, first: Iterable[Raw], decoder: Decoder
    ) -> None:
        self._order, self._batch_size, self._decoder = order, batch_size, decoder
        self._buckets = None if bucket is None else Buckets(buckets={"only": bucket})
        video = None if bucket is None else (3, bucket.num_frames, bucket.height, bucket.width)
        self._layout: Layout = _latent_layout(first) if video is None else {"video": (torch.uint8, video)}
        self._lock, self._stream = threading.Lock(), iter(list[Raw]())
        self._next: int | None = None  # number of the sample that the stream gives next; None without one
        self._passed: dict[int, list[Raw]] = {}  # batches that a thread has read on the way to its own, by first sample

    def read(self, index: int, samples: Slice) -> Loaded:
        """See `SampleReader.read`."""
        first, size = samples.first, self._batch_size
        share = size // samples.num_ranks
        with self._lock:
            batches_on = -1 if self._next is None else (first - self._next) / size
            if first not in self._passed and batches_on not in range(_ON_THE_WAY):
                self._stream, self._next, self._passed = self._order.samples(first), first, {}
            while first not in self._passed:
                assert self._next is not None
                now, self._next = self._next, None  # should the stream fail, it begins anew
                self._passed[now] = list(itertools.islice(self._stream, size))
                self._next = now + size
            whole = self._passed.pop(first)
        # A key's noise is its own: those of one key from several tars become TAR/KEY.
        tars = defaultdict[str, set[str]](set)
        for raw in whole:
            tars[raw.key].add(raw.tar)
        own = [
            replace(raw, key=f"{raw.tar.rpartition('/')[2]}/{raw.key}") if len(tars[raw.key]) > 1 else raw
            for raw in whole[samples.rank * share : (samples.rank + 1) * share]
        ]
        entries = [raw.entry for raw in own]
        return collate(index, entries, lambda _, rows: [self._sample(raw, rows) for raw in own], self._layout)

    def num_bytes(self, samples: Slice) -> int:
        """See `SampleReader.num_bytes`."""
        each = sum(dtype.itemsize * prod(shape) for dtype, shape in self._layout.values())
        return self._batch_size // samples.num_ranks * each

    def _sample(self, raw: Raw, rows: Rows) -> LoadedSample | Fault:
        try:
            loading = CachedLatents(raw, None) if self._buckets is None else Media(raw, self._buckets, self._decoder)
            return loading.load([raw.entry], rows)[0]
        except NemoVfmError as error:
            return Fault(raw.key, raw.tar, str(error))


def _latent_layout(first: Iterable[Raw]) -> Layout:
    reason = "they hold no sample"
    for raw in first:
        try:
            return CachedLatents(raw, None).layout(raw.entry)
        except NemoVfmError as error:
            reason = str(error)
    raise DataError(f"no latents can be read from these tars: {reason}; set a bucket to train from videos or images")


@needs_packages("decord", where={"decoder": "decord"})
@needs_packages("torchcodec", where={"decoder": "torchcodec"})
class StreamedTars(ScheduledData[Slice]):
    """Batches of one shape from tars that are streamed: the way for tars of others in an object store.

    The samples of global batch g are a function of the tars, the seed and g, as with `ShardData`; workers are threads.
    Nothing is held out, and lengths in epochs are known after the first. Only files in our formats are decoded.

    Args:
        tars: folders, or tars by number such as `s3://bucket/x-{000000..000127}.tar`, or a list of such.
        batch_size: samples of a global batch, over all ranks.
        bucket: what videos and pictures are cut to; None is for cached latents, all of one shape.
        num_workers: threads that decode on each rank; 0 reads when asked.
        shuffle_buffer: samples that are shuffled together, and held in memory, not decoded. 1 does not shuffle,
            the tars neither.
        counts: file that remembers how many samples each tar has; a resume then passes over whole tars.
        max_bad_in_a_row: this many unreadable samples in a row stop the run.
        max_ahead_gb: what batches read ahead may fill on each rank at most, in GB (10^9 bytes).
        max_member_mb: larger members of a tar are left out, in MB (10^6 bytes).
        decoder: reads videos: PyAV, decord or torchcodec; `auto` is PyAV, which also reads what another cannot.
    """

    timeout_s = None  # a resume reads up to its position, however long that takes

    def __init__(
        self,
        *,
        tars: Place | Sequence[Place],
        batch_size: int,
        bucket: Bucket | None = None,
        num_workers: int = 0,
        shuffle_buffer: int = 256,
        counts: WritePath | None = None,
        max_bad_in_a_row: int = 16,
        max_ahead_gb: float = 4.0,
        max_member_mb: float = 1000.0,
        decoder: Decoder = "auto",
    ) -> None:
        if min(batch_size, shuffle_buffer, max_bad_in_a_row) < 1 or num_workers < 0:
            raise ValueError(
                f"batch_size ({batch_size}), shuffle_buffer ({shuffle_buffer}) and max_bad_in_a_row "
                f"({max_bad_in_a_row}) must be at least 1, num_workers ({num_workers}) at least 0"
            )
        if not (max_ahead_gb > 0 and max_member_mb > 0):
            raise ValueError(f"max_ahead_gb ({max_ahead_gb}) and max_member_mb ({max_member_mb}) must be above 0")
        alone = [tars] if isinstance(tars, str | Path) else tars
        if not alone:
            raise ValueError("tars is an empty list, expected at least one folder or tar")
        if any(str(where).startswith("pipe:") for where in alone):
            raise ValueError("pipe: runs a program, which only PipedTars does, with --trust piped")
        self.tars, self.decoder = places(alone), decoder
        self.batch_size, self.bucket = batch_size, bucket
        self.shuffle_buffer, self.max_member_mb = shuffle_buffer, max_member_mb
        self.counts = None if counts is None else local(counts, "the file of counts")
        super().__init__(num_workers=num_workers, max_bad_in_a_row=max_bad_in_a_row, max_ahead_gb=max_ahead_gb)

    def mocked(self, shapes: SampleShapes) -> "ShardData":
        """See `HasMock`: made-up samples are listed and not streamed, so that their number is known."""
        from nemo_vfm.data.sources.shard_data import ShardData

        buckets = None if self.bucket is None else Buckets(buckets={"only": self.bucket})
        found = ShardData(
            shards=Path("made-up"), batch_size=self.batch_size, num_workers=self.num_workers, buckets=buckets,
            max_bad_in_a_row=self.max_bad_in_a_row, max_ahead_gb=self.max_ahead_gb, decoder=self.decoder,
        ).mocked(shapes)  # fmt: skip
        found.decodes = self.bucket is not None
        return found

    def open(self, seed: int) -> tuple[TarSchedule, TarReader]:
        """See `ScheduledData.open`. UserError if a tar is missing."""
        tars, limit = self._list_tars(), int(self.max_member_mb * 1e6)
        order = TarOrder(tars, TarCounts(self.counts), self.shuffle_buffer, seed=seed, max_member_bytes=limit)
        first = (sample for tar in tars for sample in samples_of(tar, max_member_bytes=limit))
        reader = TarReader(order, self.batch_size, self.bucket, itertools.islice(first, 100), self.decoder)
        warn(
            f"{len(tars)} tars are streamed without an index: only blocks of {self.shuffle_buffer} samples are "
            f"shuffled, every rank reads all bytes, and a resume reads everything up to its position; write "
            f"shards to avoid this"
        )
        return TarSchedule(order, self.batch_size), reader

    def _list_tars(self) -> list[Tar]:
        tars = list[Place]()
        for where in self.tars:
            named, found = [place(text) for text in expand_braces(str(where))], list[Place]()
            if all(one.name.endswith(".tar") for one in named):
                if missing := [one for one in named if isinstance(one, Path) and not one.is_file()]:
                    raise UserError(
                        f"there is no {missing[0]}; {len(missing)} of the {len(named)} named tars are missing"
                    )
                tars += named
                continue
            for folder in named:
                if isinstance(folder, Address):
                    names = (item.name for item in items(folder))
                    found += [folder / name for name in names if name.endswith(".tar") and "/" not in name]
                else:
                    found += sorted(folder.glob("*.tar"))
            if not found:
                raise UserError(f"{where} holds no .tar")
            info(f"{where}: {len(found)} tars")
            tars += found
        return [placed_tar(tar) for tar in tars]
