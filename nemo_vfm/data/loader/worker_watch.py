"""Watches the worker processes of one of torch's loaders, and closes its pipe as soon as one dies or hangs.

The reader is woken by the end of the pipe, and not by an exception of the signal's handler. That would be raised
wherever the reader is, even between the opening of a file and the object that closes it.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_JOIN_S = 2.0


class WorkerWatch:
    """Looks after workers for as long as a batch of theirs is waited for.

    Args:
        queue: their end of which the batches come out.
        workers: that write into it.
    """

    def __init__(self, queue: Any, workers: Sequence[BaseProcess]) -> None:
        self._queue, self._workers = queue, workers
        self.died = ""  # which one did, and how: the first that was found

    @contextmanager
    def while_waiting(self, most_s: float) -> Iterator[None]:
        """Whoever waits in the block finds the end of the pipe: at a death, also an earlier one, and after `most_s`."""
        clock = threading.Timer(most_s, self.kill)
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
        self._end_pipe()

    def clear(self) -> None:
        """Take away what they left: one killed between making shared memory and taking its name away leaves it."""
        for worker in self._workers:
            worker.join(_JOIN_S)
            for left in Path("/dev/shm").glob(f"torch_{worker.pid}_*"):  # noqa: S108
                left.unlink(missing_ok=True)

    def _look(self, *_: object) -> None:
        if not self.died and (dead := [worker for worker in self._workers if not worker.is_alive()]):
            self.died = f"process {dead[0].pid} exited unexpectedly with code {dead[0].exitcode}"
            self.kill()

    def _end_pipe(self) -> None:
        """Both of our ends become empty files: a read that a signal interrupts goes on in the one, and finds its end.

        A read that no signal reaches, as in another thread, ends with the last that can write: us.
        """
        with suppress(OSError):  # closed before, or no file can be opened: the next look after a silence finds it
            ends = self._queue._reader.fileno(), self._queue._writer.fileno()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for end in ends:
                os.dup2(nothing, end, inheritable=False)
            os.close(nothing)
