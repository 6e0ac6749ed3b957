# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A source of batches by number in; batches in order, read by processes, out. One that dies or hangs is a sentence.

One that grows, since something in it leaks, is replaced before it is killed for it; no batch is lost or read twice.

Three ways in which torch's loader alone would wait for ever, or end elsewhere: its handler of a worker's death raises
wherever the program happens to be, be it in the middle of a checkpoint; a worker that is killed while it writes leaves
half a batch in the pipe; and one that is stopped never hands over the memory of a batch that it has announced.
"""

import signal
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from nemo_vfm.core.errors import DataError, NemoVfmError
from nemo_vfm.core.log import warn
from nemo_vfm.data.by_number import ByNumber, Loaded
from nemo_vfm.data.worker_memory import own_bytes

_LOOK_S = 2.0  # how often a silent worker is looked after
_LEAST_BATCHES = 8  # that a worker reads before it is replaced: each time, training waits for about one

#: A batch, or what reading it raised; and how many bytes its worker had grown by before.
Answer = tuple[Loaded | NemoVfmError, int]


def by_processes(
    dataset: ByNumber, first: int, num_workers: int, ahead: int, *, timeout_s: float, max_growth_bytes: int | None
) -> Iterator[Loaded]:
    """Batches `first`, `first` + 1, ... without end.

    Args:
        dataset: gives a batch by its number.
        first: number of the first one.
        num_workers: processes, at least 1.
        ahead: batches that each reads ahead.
        timeout_s: none of them may be silent for longer.
        max_growth_bytes: once one has grown by more they finish what they have begun, and others take their places;
            None lets them grow.

    Raises:
        DataError: a worker died or was silent for too long.
        NemoVfmError: what reading a batch raised.
    """
    numbers, said = _From(first), False
    while True:
        grown = yield from _until_grown(dataset, numbers, num_workers, ahead, timeout_s, max_growth_bytes)
        if not said:
            warn(
                f"a process that reads batches grew by {grown / 1e9:,.2f} GB until batch {numbers.next}, more than "
                f"{(max_growth_bytes or 0) / 1e9:,.2f} GB, its part of max_memory_share: something that it runs "
                f"leaks. All {num_workers} were replaced, as they will be again; the batches are the same"
            )
        said = True


def _until_grown(
    dataset: ByNumber, numbers: "_From", num_workers: int, ahead: int, timeout_s: float, max_growth_bytes: int | None
) -> Generator[Loaded, None, int]:
    """The batches of one set of workers; at its end all that they began is given. Returns by how much one grew."""
    loader: DataLoader[Answer] = DataLoader(
        _Sent(dataset),
        batch_size=None,
        sampler=numbers,
        num_workers=num_workers,
        collate_fn=_same,
        worker_init_fn=_start_worker,
        prefetch_factor=ahead,
        timeout=min(_LOOK_S, timeout_s),
    )
    due, enough, most = numbers.next, numbers.next + _LEAST_BATCHES * num_workers, 0
    numbers.go_on()
    given, workers = _started(loader)
    try:
        while due < numbers.next or not numbers.stopped:  # once it has given the last it must not be asked again
            loaded, grown = _next(given, workers, timeout_s)
            if isinstance(loaded, NemoVfmError):
                _kill(workers)
                _clear_after(workers)
                raise loaded
            yield loaded
            due, most = due + 1, max(most, grown)
            if max_growth_bytes is not None and most > max_growth_bytes and due >= enough:
                numbers.stop()
        return most
    finally:
        del given  # else the error's traceback would keep the workers alive for as long as anyone looks at it


def _next(given: Iterator[Answer], workers: Sequence[BaseProcess], timeout_s: float) -> Answer:
    """The next batch, or why there is none."""
    until = time.monotonic() + timeout_s
    silent = DataError(f"no batch came within {timeout_s:g} s; a worker hangs, or its storage does")
    while True:
        try:
            with _watched(workers, until + _LOOK_S):
                return next(given)
        except (EOFError, ConnectionError, FileNotFoundError) as error:
            return (silent if time.monotonic() >= until else _died(f"{type(error).__name__} while it gave a batch")), 0
        except RuntimeError as error:
            if time.monotonic() >= until:
                return silent, 0
            if "exited unexpectedly" in str(error):
                return _died(str(error).splitlines()[0]), 0
            if not str(error).startswith("DataLoader timed out"):
                raise
            # Nothing was lost: it may be asked again.


def _started(loader: DataLoader[Answer]) -> tuple[Iterator[Answer], list[BaseProcess]]:
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


class _Sent(Dataset[Answer]):
    """Gives what stops a run as a value: torch would put the worker's whole traceback in front of its sentence."""

    def __init__(self, dataset: ByNumber) -> None:
        self._dataset, self._at_first = dataset, -1

    def __getitem__(self, index: int) -> Answer:
        # Between two batches: what one takes while it is decoded is no leak.
        own = own_bytes()
        self._at_first = own if self._at_first < 0 else self._at_first
        try:
            return self._dataset[index], own - self._at_first
        except NemoVfmError as error:
            return error.with_traceback(None), 0


class _From(Sampler[int]):
    """first, first + 1, ... until it is stopped; then, where it stopped, on.

    Args:
        first: the first number.
    """

    def __init__(self, first: int) -> None:
        self.next, self.stopped = first, False

    def __iter__(self) -> Iterator[int]:
        while not self.stopped:
            self.next += 1
            yield self.next - 1

    def stop(self) -> None:
        """Give no more."""
        self.stopped = True

    def go_on(self) -> None:
        """Give more, to whoever asks anew."""
        self.stopped = False


def _same(loaded: Any) -> Any:
    return loaded


def _start_worker(worker: int) -> None:
    """One thread a worker: OpenCV's thread pool does not survive a fork, and the cores are shared anyway.

    The trainer's handlers are not the worker's.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
