"""Loads global batches by number, prefetched by workers within a limit on bytes.

The batch number is its only state.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from torch.utils.data import Dataset

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.data.batching.batch_source import ByNumber, Loaded
from nemo_vfm.data.batching.faults import Fault, Faults
from nemo_vfm.data.batching.sample_order import Group, Order
from nemo_vfm.data.loader.collate import collate
from nemo_vfm.data.loader.worker_memory import part_of
from nemo_vfm.data.loader.worker_processes import by_processes
from nemo_vfm.data.shards.sample_reader import Layout, Loading
from nemo_vfm.data.shards.shard_files import Entry

_AHEAD = 4  # batches a worker reads ahead


class BatchReader:
    """Reads the samples of a list of entries into a batch.

    Args:
        loading: how one sample is read.
        entries: of the whole folder.
    """

    def __init__(self, loading: Loading, entries: Sequence[Entry]) -> None:
        self._loading, self._entries = loading, entries

    def is_light(self) -> bool:
        """See `Loading.is_light`."""
        return self._loading.is_light()

    def read(self, index: int, group: Group, samples: Sequence[int]) -> tuple[VideoBatch, list[Fault | None]]:
        """One batch; a sample that cannot be read becomes a fault."""
        return collate(index, self.entries(samples), self._loading.load, self.layout(group))

    def entries(self, samples: Sequence[int]) -> list[Entry]:
        """The samples, by their places in the list."""
        return [self._entries[sample] for sample in samples]

    def layout(self, group: Group) -> Layout:
        """What every sample of a group looks like."""
        return self._loading.layout(self._entries[group.samples[0]])

    def sample_bytes(self, group: Group) -> int:
        """What one sample of a group fills in a batch."""
        return sum(dtype.itemsize * math.prod(shape) for dtype, shape in self.layout(group).values())


class GlobalBatches(Dataset[Loaded]):
    """Global batch g, or this rank's slice of it, by its number.

    Args:
        reader: reads samples.
        order: which samples.
        rank: which slice.
        num_ranks: of how many.
    """

    def __init__(self, reader: BatchReader, order: Order, *, rank: int, num_ranks: int) -> None:
        self._reader, self._order, self._rank, self._num_ranks = reader, order, rank, num_ranks

    def is_light(self) -> bool:
        """See `Loading.is_light`."""
        return self._reader.is_light()

    def __getitem__(self, index: int) -> Loaded:
        return self._reader.read(index, *self._slice(index))

    def entries(self, index: int) -> list[Entry]:
        """What batch g is made of."""
        return self._reader.entries(self._slice(index)[1])

    def _slice(self, index: int) -> tuple[Group, list[int]]:
        group, samples = self._order.batch(index)
        share = len(samples) // self._num_ranks
        return group, samples[self._rank * share : (self._rank + 1) * share]

    def max_bytes(self) -> int:
        """See `ByNumber.max_bytes`."""
        shares = ((group, group.batch_size // self._num_ranks) for group in self._order.groups)
        return max(self._reader.sample_bytes(group) * share for group, share in shares)


def within(max_ahead_bytes: int, max_bytes: int, num_workers: int) -> tuple[int, int]:
    """How many workers, and how many batches ahead of each, fit: fewer workers only where one batch each is too much.

    Args:
        max_ahead_bytes: all that is read ahead.
        max_bytes: of the largest batch.
        num_workers: wanted, at least 1.
    """
    fit = max(1, max_ahead_bytes // max(1, max_bytes))
    workers = min(num_workers, fit)
    return workers, min(_AHEAD, fit // workers)


@no_component
class Batches:
    """Batches `first`, `first` + 1, ... without end; each iteration starts at `first` with workers of its own.

    Cached latents are read by threads: they start in no time and hand a batch over without copying it. Videos are
    decoded by processes.

    Args:
        dataset: gives a batch by its number.
        first: number of the first one.
        num_workers: how many read ahead; 0 reads when asked.
        faults: counts bad samples.
        max_ahead_bytes: what batches read ahead may fill; the one in use is not counted.
        timeout_s: a worker silent for longer than this stops the run.
        max_memory_share: of the machine's memory, what its workers may grow by; see `worker_memory.py`.
    """

    def __init__(
        self,
        dataset: ByNumber,
        *,
        first: int,
        num_workers: int,
        faults: Faults,
        max_ahead_bytes: int = 4 << 30,
        timeout_s: float = 600.0,
        max_memory_share: float | None = None,
    ) -> None:
        self._dataset, self._first, self._faults, self._timeout_s = dataset, first, faults, timeout_s
        self._num_workers, self._ahead = num_workers, 0
        if num_workers:
            self._num_workers, self._ahead = within(max_ahead_bytes, dataset.max_bytes(), num_workers)
        self._max_growth_bytes = part_of(max_memory_share, self._num_workers)
        if self._num_workers < num_workers:
            warn_once(
                f"{self._num_workers} of {num_workers} workers read ahead, because a batch has "
                f"{dataset.max_bytes():,} bytes "
                f"and max_ahead_gb allows {max_ahead_bytes:,}"
            )

    def __iter__(self) -> Iterator[Batch]:
        for batch, found in self._threads() if self._dataset.is_light() and self._num_workers else self._decoded():
            self._faults.count(found)
            yield batch

    def _threads(self) -> Iterator[Loaded]:
        numbers = itertools.count(self._first)
        workers = ThreadPoolExecutor(self._num_workers, thread_name_prefix="batches")
        try:
            ahead = deque(
                workers.submit(self._dataset.__getitem__, next(numbers)) for _ in range(self._ahead * self._num_workers)
            )
            while True:
                loaded = ahead.popleft().result(self._timeout_s)
                ahead.append(workers.submit(self._dataset.__getitem__, next(numbers)))
                yield loaded
        except TimeoutError as error:
            raise DataError(f"no batch came within {self._timeout_s:g} s; is the shards' storage reachable?") from error
        finally:
            workers.shutdown(wait=False, cancel_futures=True)

    def _decoded(self) -> Iterator[Loaded]:
        if not self._num_workers:
            return (self._dataset[index] for index in itertools.count(self._first))
        return by_processes(
            self._dataset,
            self._first,
            self._num_workers,
            self._ahead,
            timeout_s=self._timeout_s,
            max_growth_bytes=self._max_growth_bytes,
        )
