"""Reads tars without an index, here or in an object store, from front to back into training batches.

It has three costs against indexed shards. An epoch shuffles the tars, but within them only blocks of `shuffle_buffer`
samples. Every rank reads all bytes. A resume reads up to its position, except for tars whose count is known.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.storage.object_store import items
from nemo_vfm.core.storage.uri import Address, Place, local, place, places
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.core.types.training_data import ReadPosition
from nemo_vfm.data.batching.batch_source import Loaded
from nemo_vfm.data.batching.bucket import Bucket
from nemo_vfm.data.batching.faults import Faults
from nemo_vfm.data.loader.batch_loader import within
from nemo_vfm.data.loader.collate import RawReader
from nemo_vfm.data.loader.scheduled_data import PositionedData
from nemo_vfm.data.shards.shard_paths import expanded
from nemo_vfm.data.shards.tar_order import TarCounts, TarOrder
from nemo_vfm.data.shards.tar_stream import Raw, Tar, placed_tar, samples_of


@needs_packages("decord", where={"decoder": "decord"})
@needs_packages("torchcodec", where={"decoder": "torchcodec"})
class StreamedTars(PositionedData):
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

    _started: tuple[TarOrder, RawReader] | None

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
        self.batch_size, self.bucket, self.num_workers = batch_size, bucket, num_workers
        self.shuffle_buffer, self.max_ahead_gb, self.max_member_mb = shuffle_buffer, max_ahead_gb, max_member_mb
        self.counts = None if counts is None else local(counts, "the file of counts")
        self.faults = Faults(max_in_a_row=max_bad_in_a_row)  #: bad samples met so far
        super().__init__()
        self._rank, self._num_ranks = 0, 1

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        """See `TrainingData.start`; `rank` of `num_ranks` data-parallel ranks gets its slice of every batch.

        Raises:
            UserError: a tar is missing, or batch_size is not divisible by the number of ranks.
        """
        self.require_divisible(num_ranks)
        tars = self._listed()
        limit = int(self.max_member_mb * 1e6)
        order = TarOrder(tars, TarCounts(self.counts), self.shuffle_buffer, seed=seed, max_member_bytes=limit)
        first = (sample for tar in tars for sample in samples_of(tar, max_member_bytes=limit))
        self._started = order, RawReader(self.bucket, itertools.islice(first, 100), self.decoder)
        self._first_batch, self._rank, self._num_ranks = first_batch, rank, num_ranks
        warn(
            f"{len(tars)} tars are streamed without an index: only blocks of {self.shuffle_buffer} samples are "
            f"shuffled, every rank reads all bytes, and a resume reads everything up to its position; write "
            f"shards to avoid this"
        )

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData`; it is of one part."""
        order = self._open()[0]
        return {"tars": ReadPosition(self._place(index), order.known_total() or 0, order.digest())}

    def train_dataloader(self) -> Iterator[Batch]:
        """See `TrainingData.train_dataloader`."""
        order, reader = self._open()
        slices = self._slices(order)
        one_by_one = (reader.read(*one) for one in slices)
        for batch, found in self._read_ahead(reader, slices) if self.num_workers else one_by_one:
            self.faults.count(found)
            yield batch

    def val_dataloader(self) -> Iterable[Batch]:
        """Nothing is held out."""
        return ()

    def batches_per_epoch(self) -> float:
        """See `TrainingData.batches_per_epoch`."""
        return self.num_train_samples() / self.batch_size

    def num_train_samples(self) -> int:
        """See `TrainingData.num_train_samples`.

        Raises:
            UserError: some tar was never read to its end, so nobody knows.
        """
        total = self._open()[0].known_total()
        if total is None:
            raise UserError(
                "the number of samples is unknown until the tars have been read once; give the duration in steps, "
                "or give `counts` from a run that has read them all"
            )
        return total

    def _listed(self) -> list[Tar]:
        return [placed_tar(tar) for where in self.tars for tar in _tars_at(where)]

    def _place(self, index: int) -> int:
        """Samples before global batch `index`."""
        return self._places.get("tars", 0) + (index - self._begins) * self.batch_size

    def _open(self) -> tuple[TarOrder, RawReader]:
        if self._started is None:
            raise UserError("the data was read before start(seed=..., first_batch=...) was called; call it first")
        return self._started

    def _slices(self, order: TarOrder) -> Iterator[tuple[int, list[Raw]]]:
        """This rank's samples of batches first_batch, first_batch + 1, ..., not decoded."""
        share, samples = self.batch_size // self._num_ranks, order.samples(self._place(self._first_batch))
        for index in itertools.count(self._first_batch):
            whole = list(itertools.islice(samples, self.batch_size))
            # A key's noise is its own: those of one key from several tars become TAR/KEY.
            tars = defaultdict[str, set[str]](set)
            for raw in whole:
                tars[raw.key].add(raw.tar)
            yield (
                index,
                [
                    replace(raw, key=f"{raw.tar.rpartition('/')[2]}/{raw.key}") if len(tars[raw.key]) > 1 else raw
                    for raw in whole[self._rank * share : (self._rank + 1) * share]
                ],
            )

    def _read_ahead(self, reader: RawReader, slices: Iterator[tuple[int, list[Raw]]]) -> Iterator[Loaded]:
        """One thread reads, others decode, within a number of bytes; batches come in their order."""
        slice_bytes = self.batch_size // self._num_ranks * reader.sample_bytes
        count, ahead = within(int(self.max_ahead_gb * 1e9), slice_bytes, self.num_workers)
        line = ThreadPoolExecutor(1, thread_name_prefix="stream")
        workers = ThreadPoolExecutor(count, thread_name_prefix="decode")

        def submit() -> Future[Loaded]:
            raw = line.submit(next, slices)
            return workers.submit(lambda: reader.read(*raw.result()))

        try:
            waiting = deque(submit() for _ in range(count * ahead))
            while True:
                loaded = waiting.popleft().result()
                waiting.append(submit())
                yield loaded
        finally:
            line.shutdown(wait=False, cancel_futures=True)
            workers.shutdown(wait=False, cancel_futures=True)


def _tars_at(where: Place) -> list[Place]:
    """The tars that one place names, those of a folder sorted."""
    named = [place(text) for text in expanded(str(where))]
    if all(one.name.endswith(".tar") for one in named):
        missing = [one for one in named if isinstance(one, Path) and not one.is_file()]
        if missing:
            raise UserError(f"there is no {missing[0]}; {len(missing)} of the {len(named)} named tars are missing")
        return named
    found = list[Place]()
    for folder in named:
        if isinstance(folder, Address):
            names = (item.name for item in items(folder))
            found += [folder / name for name in names if name.endswith(".tar") and "/" not in name]
        else:
            found += sorted(folder.glob("*.tar"))
    if not found:
        raise UserError(f"{where} holds no .tar")
    info(f"{where}: {len(found)} tars")
    return found
