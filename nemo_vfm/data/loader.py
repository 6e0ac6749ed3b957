# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of global batches in, batches out, read ahead by workers; nothing is remembered but the number."""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from nemo_vfm.core.errors import DataError, NemoVfmError, StoreError
from nemo_vfm.core.types import Batch
from nemo_vfm.data.collate import collate
from nemo_vfm.data.faults import Fault, Faults
from nemo_vfm.data.load import Loading, Sample
from nemo_vfm.data.order import Group, Order
from nemo_vfm.data.shards import Entry

Loaded = tuple[Batch, list[Fault | None]]
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

    def read(self, index: int, group: Group, samples: Sequence[int]) -> Loaded:
        """One batch; a sample that cannot be read becomes a fault."""
        entries = [self._entries[sample] for sample in samples]
        layout = self._loading.layout(self._entries[group.samples[0]])
        return collate(index, entries, [self._sample(entry) for entry in entries], layout)

    def _sample(self, entry: Entry) -> Sample | Fault:
        try:
            return self._loading.load(entry)
        except StoreError:
            raise  # the sample is well, the line is not: going on without it would train on other batches
        except (NemoVfmError, OSError, ValueError, KeyError, TypeError, cv2.error) as error:
            return Fault(entry.key, entry.shard, str(error))


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
        group, samples = self._order.batch(index)
        share = len(samples) // self._num_ranks
        return self._reader.read(index, group, samples[self._rank * share : (self._rank + 1) * share])


class _From(Sampler[int]):
    """first, first + 1, ... without end."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self._first)


class Batches:
    """Batches `first`, `first` + 1, ... without end; each iteration starts at `first` with workers of its own.

    Cached latents are read by threads: they start in no time and hand a batch over without copying it (three times the
    samples a second of two processes, 64 KiB latents, 2 cores, 2026-11). Videos are decoded by processes.

    Args:
        dataset: gives a batch by its number.
        first: number of the first one.
        num_workers: how many read ahead; 0 reads when asked.
        faults: counts bad samples.
        timeout_s: a worker silent for longer than this stops the run.
    """

    def __init__(
        self, dataset: GlobalBatches, *, first: int, num_workers: int, faults: Faults, timeout_s: float = 600.0
    ) -> None:
        self._dataset, self._first, self._num_workers = dataset, first, num_workers
        self._faults, self._timeout_s = faults, timeout_s

    def __iter__(self) -> Iterator[Batch]:
        for batch, found in self._threads() if self._dataset.is_light() and self._num_workers else self._processes():
            self._faults.count(found)
            yield batch

    def _threads(self) -> Iterator[Loaded]:
        numbers = itertools.count(self._first)
        workers = ThreadPoolExecutor(self._num_workers, thread_name_prefix="batches")
        try:
            ahead = deque(
                workers.submit(self._dataset.__getitem__, next(numbers)) for _ in range(_AHEAD * self._num_workers)
            )
            while True:
                loaded = ahead.popleft().result(self._timeout_s)
                ahead.append(workers.submit(self._dataset.__getitem__, next(numbers)))
                yield loaded
        except TimeoutError as error:
            raise DataError(
                f"no batch came within {self._timeout_s:g} s; is the storage of the shards alive?"
            ) from error
        finally:
            workers.shutdown(wait=False, cancel_futures=True)

    def _processes(self) -> Iterator[Loaded]:
        yield from DataLoader(
            self._dataset,
            batch_size=None,
            sampler=_From(self._first),
            num_workers=self._num_workers,
            collate_fn=_same,
            worker_init_fn=_start_worker,
            prefetch_factor=_AHEAD if self._num_workers else None,
            timeout=self._timeout_s if self._num_workers else 0,
        )


def _same(loaded: Any) -> Any:
    return loaded


def _start_worker(worker: int) -> None:
    """One thread a worker: OpenCV's thread pool does not survive a fork, and the cores are shared anyway."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
