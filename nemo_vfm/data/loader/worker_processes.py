"""Reads batches in order by worker processes; one that dies or hangs becomes an error of one sentence.

Workers that exceed their memory share, since something in them leaks, are restarted before they are killed for it. No
batch is lost or read twice.

In three cases torch's loader alone would hang, or fail elsewhere. Its handler of a worker's death raises wherever the
program happens to be, even in the middle of a checkpoint. A worker that is killed while it writes leaves half a batch
in the pipe. One that is stopped never hands over the memory of a batch that it has announced.
"""

import os
import signal
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from nemo_vfm.core.errors import DataError, NemoVfmError
from nemo_vfm.core.log import warn
from nemo_vfm.core.process import how_it_ended
from nemo_vfm.data.batching.batch_source import Loaded

_STATM = Path("/proc/self/statm")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_MIN_BYTES = 512 << 20  # decoders and allocators keep so much without any leak


def part_of(share: float | None, num_workers: int) -> int | None:
    """What each of a rank's workers may grow by, in bytes; None where nothing is limited.

    Ranks on one machine share it, as many as torchrun's LOCAL_WORLD_SIZE says.
    """
    if share is None or not num_workers:
        return None
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    workers = num_workers * (int(ranks) if ranks.isdecimal() and int(ranks) else 1)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [path.read_text().strip() for path in _LIMITS if path.is_file()]  # what a container may use of it
    memory = min([total, *(int(limit) for limit in limits if limit.isdecimal())])
    return max(_MIN_BYTES, int(share * memory / workers))


def own_bytes() -> int:
    """Memory that this process holds and shares with no file; 0 on systems that do not tell (all but Linux).

    Only what it takes since it began counts: a fork begins with its parent's pages. Batches that wait for the trainer
    are in shared memory, which `max_ahead_gb` limits.
    """
    try:
        _, resident, shared = _STATM.read_bytes().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


_JOIN_S = 2.0


@dataclass(slots=True)
class WorkerWatch:
    """Looks after workers for as long as a batch of theirs is waited for, and closes their pipe once one dies or hangs.

    The reader is woken by the end of the pipe, and not by an exception of the signal's handler. That would be raised
    wherever the reader is, even between the opening of a file and the object that closes it.
    """

    _queue: Any
    _workers: Sequence[BaseProcess]
    died: str = ""  #: which one did, and how: the first that was found

    @contextmanager
    def while_waiting(self, max_s: float) -> Iterator[None]:
        """Whoever waits in the block finds the end of the pipe: at a death, also an earlier one, and after `max_s`."""
        clock = threading.Timer(max_s, self.kill)
        clock.daemon = True
        is_main = threading.current_thread() is threading.main_thread()  # only there do signals arrive
        before = signal.getsignal(signal.SIGCHLD)
        clock.start()
        try:
            if is_main:
                signal.signal(signal.SIGCHLD, self._look)
            self._look()
            yield
        finally:
            clock.cancel()
            if is_main:
                signal.signal(signal.SIGCHLD, before)

    def kill(self) -> None:
        """End them all, and their pipe; one that is stopped or hangs would hear nothing else."""
        for worker in self._workers:
            worker.kill()
        # Both of our ends become empty files: a read that a signal interrupts goes on in the one, and finds its end.
        # A read that no signal reaches, as in another thread, ends with the last that can write: us.
        with suppress(OSError):  # closed before, or no file can be opened: the next look after a silence finds it
            ends = self._queue._reader.fileno(), self._queue._writer.fileno()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for end in ends:
                os.dup2(nothing, end, inheritable=False)
            os.close(nothing)

    def clear(self) -> None:
        """Take away what they left: one killed between making shared memory and taking its name away leaves it."""
        for worker in self._workers:
            worker.join(_JOIN_S)
            for left in Path("/dev/shm").glob(f"torch_{worker.pid}_*"):  # noqa: S108
                left.unlink(missing_ok=True)

    def _look(self, *_: object) -> None:
        if not self.died and (dead := [worker for worker in self._workers if not worker.is_alive()]):
            self.died = f"process {dead[0].pid} {how_it_ended(dead[0].exitcode)}"
            self.kill()


_LOOK_S = 2.0  # how often a silent worker is looked after
_MIN_BATCHES = 8  # that a worker reads before it is replaced: each time, training waits for about one

#: A batch, or what reading it raised; and how many bytes its worker had grown by before.
Answer = tuple[Loaded | NemoVfmError, int]


def by_processes(
    dataset: Dataset[Loaded],
    first: int,
    num_workers: int,
    ahead: int,
    *,
    timeout_s: float,
    max_growth_bytes: int | None,
) -> Iterator[Loaded]:
    """Batches `first`, `first` + 1, ... without end, of which each process reads so many ahead.

    None may be silent for longer than `timeout_s`. Once one has grown by more than `max_growth_bytes`, if that is not
    None, they finish what they have begun, and others take their places.
    """
    numbers, was_reported = _From(first), False
    while True:
        grown = yield from _until_grown(dataset, numbers, num_workers, ahead, timeout_s, max_growth_bytes)
        if not was_reported:
            warn(
                f"a data worker grew by {grown / 1e9:,.2f} GB until batch {numbers.next}, more than "
                f"{(max_growth_bytes or 0) / 1e9:,.2f} GB, its share of max_memory_share: something in it leaks "
                f"memory. All {num_workers} workers were restarted, and will be again if needed; the batches stay "
                "the same"
            )
        was_reported = True


def _until_grown(
    dataset: Dataset[Loaded],
    numbers: "_From",
    num_workers: int,
    ahead: int,
    timeout_s: float,
    max_growth_bytes: int | None,
) -> Generator[Loaded, None, int]:
    """The batches of one set of workers; at its end all that they began is given. Returns by how much one grew."""
    loader: DataLoader[Answer] = DataLoader(
        _ErrorsAsValues(dataset),
        batch_size=None,
        sampler=numbers,
        num_workers=num_workers,
        collate_fn=_identity,
        worker_init_fn=_start_worker,
        prefetch_factor=ahead,
        timeout=min(_LOOK_S, timeout_s),
    )
    due, enough, most = numbers.next, numbers.next + _MIN_BATCHES * num_workers, 0
    numbers.stopped = False
    given, watch = _start_workers(loader)
    try:
        while due < numbers.next or not numbers.stopped:  # once it has given the last it must not be asked again
            loaded, grown = _next_batch(given, watch, timeout_s)
            if isinstance(loaded, NemoVfmError):
                watch.kill()
                watch.clear()
                raise loaded
            yield loaded
            due, most = due + 1, max(most, grown)
            if max_growth_bytes is not None and most > max_growth_bytes and due >= enough:
                numbers.stopped = True
        return most
    finally:
        del given, watch  # else the error's traceback would keep workers and pipe for as long as anyone looks at it


def _next_batch(given: Iterator[Answer], watch: WorkerWatch, timeout_s: float) -> Answer:
    """The next batch, or why there is none."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            with watch.while_waiting(until + _LOOK_S - time.monotonic()):
                return next(given)
        except (EOFError, OSError, RuntimeError) as error:
            if time.monotonic() >= until:
                return DataError(f"no batch came within {timeout_s:g} s; a worker or its storage hangs"), 0
            died = watch.died  # else how a worker's death shows itself before it is seen
            if not died and isinstance(error, EOFError | ConnectionError | FileNotFoundError):
                died = f"{type(error).__name__} while it gave a batch"
            elif not died and "exited unexpectedly" in str(error):
                died = str(error).splitlines()[0]
            if died:
                return DataError(f"a data worker died ({died}), often because memory ran out: lower num_workers or "
                                 f"max_ahead_gb, and run again to resume"), 0  # fmt: skip
            if not str(error).startswith("DataLoader timed out"):
                raise
            # Nothing was lost: it may be asked again.


def _start_workers(loader: DataLoader[Answer]) -> tuple[Iterator[Answer], WorkerWatch]:
    """An iterator whose workers run, and who looks after them; torch's handler gives way to the one before it."""
    before = signal.getsignal(signal.SIGCHLD)
    others = {child.pid for child in active_children()}
    given: Any = iter(loader)
    workers = [child for child in active_children() if child.pid not in others]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, before)
    # Somebody else's loader may have left torch's handler: it would raise over our workers in the middle of anything.
    torch._C._remove_worker_pids(id(given))
    given._worker_pids_set = False
    return given, WorkerWatch(given._worker_result_queue, workers)


@dataclass(eq=False)
class _ErrorsAsValues(Dataset[Answer]):
    """Gives what stops a run as a value: torch would put the worker's whole traceback in front of its sentence."""

    _dataset: Dataset[Loaded]
    _at_first: int = -1

    def __getitem__(self, index: int) -> Answer:
        # Between two batches: what one takes while it is decoded is no leak.
        own = own_bytes()
        self._at_first = own if self._at_first < 0 else self._at_first
        try:
            return self._dataset[index], own - self._at_first
        except NemoVfmError as error:
            return error.with_traceback(None), 0


@dataclass(eq=False)
class _From(Sampler[int]):
    """first, first + 1, ... until it is stopped; then, where it stopped, on."""

    next: int
    stopped: bool = False

    def __iter__(self) -> Iterator[int]:
        while not self.stopped:
            self.next += 1
            yield self.next - 1


def _identity(loaded: Any) -> Any:
    return loaded


def _start_worker(worker: int) -> None:
    """One thread a worker: OpenCV's thread pool does not survive a fork, and the cores are shared anyway.

    The trainer's handlers are not the worker's, and a Ctrl-C, which reaches the whole terminal, is the trainer's alone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
