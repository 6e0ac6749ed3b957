"""Loads global batches by number, prefetched by workers within a limit on bytes.

The batch number is its only state.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.component import no_component
from nemo_vfm.data.batching.batch_source import Loaded, ScheduledBatches
from nemo_vfm.data.batching.faults import Faults
from nemo_vfm.data.loader.worker_processes import by_processes, part_of

_AHEAD = 4  # batches a worker reads ahead


def within(max_ahead_bytes: int, max_bytes: int, num_workers: int) -> tuple[int, int]:
    """How many of the workers, and batches ahead of each, fit: fewer workers only where one batch each is too much."""
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
        timeout_s: a worker silent for longer than this stops the run; None lets threads wait without end.
        max_memory_share: of the machine's memory, what its workers may grow by; see `worker_processes.py`.
    """

    def __init__(
        self, dataset: ScheduledBatches[Any], *, first: int, num_workers: int, faults: Faults,
        max_ahead_bytes: int = 4 << 30, timeout_s: float | None = 600.0, max_memory_share: float | None = None,
    ) -> None:  # fmt: skip
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
        loaded: Iterator[Loaded]
        if not self._num_workers:
            loaded = (self._dataset[index] for index in itertools.count(self._first))
        elif self._dataset.reader.is_light:
            loaded = self._threads()
        else:
            assert self._timeout_s is not None, "a process that hangs would never be found"
            loaded = by_processes(
                self._dataset, self._first, self._num_workers, self._ahead, timeout_s=self._timeout_s,
                max_growth_bytes=self._max_growth_bytes,
            )  # fmt: skip
        for batch, found in loaded:
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
