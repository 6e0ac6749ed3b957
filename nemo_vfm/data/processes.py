# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A source of batches by number in; batches in order, read by processes, out. One that dies or hangs is a sentence.

Three ways in which torch's loader alone would wait for ever, or end elsewhere: its handler of a worker's death raises
wherever the program happens to be, be it in the middle of a checkpoint; a worker that is killed while it writes leaves
half a batch in the pipe; and one that is stopped never hands over the memory of a batch that it has announced.
"""

import itertools
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from nemo_vfm.core.errors import DataError, NemoVfmError
from nemo_vfm.data.by_number import ByNumber, Loaded

_LOOK_S = 2.0  # how often a silent worker is looked after


def by_processes(dataset: ByNumber, first: int, num_workers: int, ahead: int, *, timeout_s: float) -> Iterator[Loaded]:
    """Batches `first`, `first` + 1, ... without end.

    Args:
        dataset: gives a batch by its number.
        first: number of the first one.
        num_workers: processes, at least 1.
        ahead: batches that each reads ahead.
        timeout_s: none of them may be silent for longer.

    Raises:
        DataError: a worker died or was silent for too long.
        NemoVfmError: what reading a batch raised.
    """
    loader: DataLoader[Loaded | NemoVfmError] = DataLoader(
        _Sent(dataset),
        batch_size=None,
        sampler=_From(first),
        num_workers=num_workers,
        collate_fn=_same,
        worker_init_fn=_start_worker,
        prefetch_factor=ahead,
        timeout=min(_LOOK_S, timeout_s),
    )
    given, workers = _started(loader)
    try:
        while True:
            loaded = _next(given, workers, timeout_s)
            if isinstance(loaded, NemoVfmError):
                _kill(workers)
                _clear_after(workers)
                raise loaded
            yield loaded
    finally:
        del given  # else the error's traceback would keep the workers alive for as long as anyone looks at it


def _next(
    given: Iterator[Loaded | NemoVfmError], workers: Sequence[BaseProcess], timeout_s: float
) -> Loaded | NemoVfmError:
    """The next batch, or why there is none."""
    until = time.monotonic() + timeout_s
    silent = DataError(f"no batch came within {timeout_s:g} s; a worker hangs, or its storage does")
    while True:
        try:
            with _watched(workers, until + _LOOK_S):
                return next(given)
        except (EOFError, ConnectionError, FileNotFoundError) as error:
            return silent if time.monotonic() >= until else _died(f"{type(error).__name__} while it gave a batch")
        except RuntimeError as error:
            if time.monotonic() >= until:
                return silent
            if "exited unexpectedly" in str(error):
                return _died(str(error).splitlines()[0])
            if not str(error).startswith("DataLoader timed out"):
                raise
            # Nothing was lost: it may be asked again.


def _started(
    loader: DataLoader[Loaded | NemoVfmError],
) -> tuple[Iterator[Loaded | NemoVfmError], list[BaseProcess]]:
    """An iterator whose workers run, and those; torch's handler gives way to the one that was there before."""
    before = signal.getsignal(signal.SIGCHLD)
    others = {child.pid for child in active_children()}
    given = iter(loader)
    workers = [child for child in active_children() if child.pid not in others]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, before)
    # Somebody else's loader may have left torch's handler: it would raise over our workers in the middle of anything.
    torch._C._remove_worker_pids(id(given))
    given._worker_pids_set = False  # type: ignore[attr-defined]
    return given, workers


@contextmanager
def _watched(workers: Sequence[BaseProcess], until: float) -> Iterator[None]:
    """Raises RuntimeError inside the block when a worker dies or was dead before; kills them all at `until`."""

    armed = [True]

    def look(*_: object) -> None:
        if armed and (dead := [worker for worker in workers if not worker.is_alive()]):
            armed.clear()  # once: a signal may come between any two lines here, also before this handler is taken off
            raise RuntimeError(f"process {dead[0].pid} exited unexpectedly with code {dead[0].exitcode}")

    is_main = threading.current_thread() is threading.main_thread()  # only there do signals arrive
    before = signal.getsignal(signal.SIGCHLD)
    clock = threading.Timer(max(0.0, until - time.monotonic()), _kill, (workers,))
    clock.daemon = True
    try:
        if is_main:
            signal.signal(signal.SIGCHLD, look)
        look()
        clock.start()
        yield
    finally:
        armed.clear()
        clock.cancel()
        if is_main:
            signal.signal(signal.SIGCHLD, before)


def _kill(workers: Sequence[BaseProcess]) -> None:
    """One that is stopped or hangs would hear nothing else, and be waited for at exit."""
    for worker in workers:
        worker.kill()


def _clear_after(workers: Sequence[BaseProcess]) -> None:
    """One that is killed between making shared memory and taking its name away leaves it, named by its process."""
    for worker in workers:
        worker.join(_LOOK_S)
        for left in Path("/dev/shm").glob(f"torch_{worker.pid}_*"):  # noqa: S108
            left.unlink(missing_ok=True)


def _died(what: str) -> DataError:
    return DataError(
        f"a process that reads batches died ({what}); often memory ran out: give fewer num_workers or a smaller "
        f"max_ahead_gb, and run again to go on"
    )


class _Sent(Dataset[Loaded | NemoVfmError]):
    """Gives what stops a run as a value: torch would put the worker's whole traceback in front of its sentence."""

    def __init__(self, dataset: ByNumber) -> None:
        self._dataset = dataset

    def __getitem__(self, index: int) -> Loaded | NemoVfmError:
        try:
            return self._dataset[index]
        except NemoVfmError as error:
            return error.with_traceback(None)


class _From(Sampler[int]):
    """first, first + 1, ... without end."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self._first)


def _same(loaded: Any) -> Any:
    return loaded


def _start_worker(worker: int) -> None:
    """One thread a worker: OpenCV's thread pool does not survive a fork, and the cores are shared anyway.

    The trainer's handlers are not the worker's.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
