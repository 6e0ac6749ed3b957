"""Loads the same batches on ranks that need the same samples, with every byte fetched from storage once.

Tensor-, context- and pipeline-parallel peers train on the same samples. With plain loading, the storage sends every
byte to each of them. Here each fetches another share of a batch's bytes, and the shares are gathered (2503.12964,
section 3). With R peers and N bytes per batch, storage sends N instead of R N. Each peer receives N (R - 1) / R from
the others. The batches equal those of plain loading, bit by bit.

One thread of each rank does all exchanges, in the order of the batches, so the collectives match on all ranks.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import info
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.data.batching.batch_source import Loaded, ReadTraffic, ScheduledBatches
from nemo_vfm.data.batching.faults import Faults
from nemo_vfm.data.loader.batch_loader import within
from nemo_vfm.data.loader.fetch_exchange import Exchange, FetchedBytes, HasSpans
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.data.shards.shard_folder import Buffers, LocalShard, MemberSpan


class HeldSamples:
    """Samples that are read from what was gathered, where there is something, and else from where they lie."""

    def __init__(self, inner: HasSpans, traffic: ReadTraffic) -> None:
        self.inner, self._traffic, self._here = inner, traffic, threading.local()
        self.entries, self.folder = inner.entries, inner.folder

    def __reduce__(self) -> tuple[type["HeldSamples"], tuple[HasSpans, ReadTraffic]]:
        return HeldSamples, (self.inner, self._traffic)

    def hold(self, held: FetchedBytes | None) -> None:
        """From here on this thread reads from `held`; other threads read from theirs."""
        self._here.held = held

    def read(self, entry: Entry, extension: str) -> bytes:
        """See `Samples.read`."""
        return self.read_all(entry, (extension,))[0]

    def read_all(self, entry: Entry, extensions: Sequence[str]) -> list[bytes]:
        """See `Samples.read_all`."""
        held: FetchedBytes | None = getattr(self._here, "held", None)
        if held is None:
            return self.inner.read_all(entry, extensions)
        spans = self.inner.spans(entry, extensions)
        data = []
        for offset, size in spans:
            where = (entry.shard, offset, size)
            if where in held.failed:
                raise DataError(held.failed[where])
            if where not in held.spans:
                self._traffic.alone += size
            data.append(held.spans[where] if where in held.spans else self.inner.read_span(entry, offset, size))
        found = []
        for extension in extensions:
            offset, size = entry.members[extension]
            begin, span = next(  # the span that the member lies in
                (begin, span)
                for (begin, length), span in zip(spans, data, strict=True)
                if begin <= offset and offset + size <= begin + length
            )
            found.append(self.inner.check_bytes(entry, extension, span[offset - begin : offset - begin + size]))
        return found

    def locate(self, entry: Entry, extensions: Sequence[str]) -> tuple[LocalShard, MemberSpan] | None:
        """See `ReadsInPlace`; nowhere, while this thread reads what was gathered."""
        return self.inner.locate(entry, extensions) if getattr(self._here, "held", None) is None else None

    def check(self, entry: Entry, extensions: Sequence[str], members: Sequence[Buffers], missing: int) -> None:
        """See `ReadsInPlace`."""
        self.inner.check(entry, extensions, members, missing)


class UniqueBatches:
    """Batches `first`, `first` + 1, ... without end, like `Batches`, on ranks that share what they fetch.

    Exchanges run ahead in a thread of their own; batches are made of the bytes by threads, videos too.

    Args:
        dataset: gives this rank's batches; its samples are read through `samples`.
        entries: what a batch is made of, by its number.
        samples: what the dataset reads from.
        exchange: fetches and gathers.
        first: number of the first batch.
        num_workers: threads that make batches ahead; 0 makes them when asked.
        faults: counts bad samples.
        max_ahead_bytes: what batches made ahead may fill.
    """

    def __init__(
        self, dataset: ScheduledBatches[Any], entries: Callable[[int], Sequence[Entry]], samples: HeldSamples,
        exchange: Exchange, *, first: int, num_workers: int, faults: Faults, max_ahead_bytes: int = 4 << 30,
    ) -> None:  # fmt: skip
        self._dataset, self._entries, self._samples, self._exchange = dataset, entries, samples, exchange
        self._first = first
        self._faults, self._num_workers, self._ahead = faults, num_workers, 0
        if num_workers:
            self._num_workers, self._ahead = within(max_ahead_bytes, dataset.max_bytes(), num_workers)

    def __iter__(self) -> Iterator[Batch]:
        try:
            fetched = ((i, self._exchange.fetch(i, self._entries(i))) for i in itertools.count(self._first))
            one_by_one = (self._load(index, held) for index, held in fetched)
            with closing(self._read_ahead() if self._num_workers else one_by_one) as loaded:
                for batch, found in loaded:
                    self._faults.count(found)
                    yield batch
        finally:
            info(f"shared loading, {self._exchange.traffic}")

    def _load(self, index: int, held: FetchedBytes) -> Loaded:
        self._samples.hold(held)
        try:
            return self._dataset[index]
        finally:
            self._samples.hold(None)

    def _read_ahead(self) -> Generator[Loaded, None, None]:
        line = ThreadPoolExecutor(1, thread_name_prefix="exchange")
        workers = ThreadPoolExecutor(self._num_workers, thread_name_prefix="batches")
        ahead: deque[Future[Loaded]] = deque()
        try:
            for index in itertools.count(self._first):
                gathered = line.submit(lambda i: self._exchange.fetch(i, self._entries(i)), index)
                ahead.append(workers.submit(lambda i, bytes_: self._load(i, bytes_.result()), index, gathered))
                if len(ahead) > self._ahead * self._num_workers:
                    yield ahead.popleft().result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)
            # Exchanges that were asked for are finished and not called off: the peers ask for as many.
            line.shutdown(wait=True)
