"""Runs the parts of a job in several processes, and yields each part's number when it is done."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from nemo_vfm.core.errors import DataError, NemoVfmError, UserError


class Work(Protocol):
    """Parts that do not depend on each other; it is sent to other processes."""

    def do(self, number: int) -> None:
        """One part; what it makes is on the disk when it returns."""
        ...


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def done(work: Work, numbers: Sequence[int], processes: int) -> Iterator[int]:
    """Numbers in the order in which their parts are done. Whatever ends it early ends the processes, too.

    Args:
        processes: at most so many; with one, this process does everything.

    Raises:
        UserError, DataError: a part cannot be done, or a process died.
    """
    if min(processes, len(numbers)) <= 1:
        for number in numbers:
            work.do(number)
            yield number
        return
    workers = _Workers(work, min(processes, len(numbers)))
    try:
        yield from workers.done(numbers)
    finally:
        workers.stop()


class _Workers:
    """Processes, each with a pipe."""

    def __init__(self, work: Work, count: int) -> None:
        self._members: dict[Connection, BaseProcess] = {}
        context = multiprocessing.get_context("spawn")
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, work), daemon=True)
            process.start()
            theirs.close()
            self._members[ours] = process

    def done(self, numbers: Sequence[int]) -> Iterator[int]:
        waiting = iter(numbers)
        busy = {pipe for pipe in self._members if _give(pipe, waiting)}
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                yield self._answer(pipe)
                if not _give(pipe, waiting):
                    busy.remove(pipe)

    def _answer(self, pipe: Connection) -> int:
        try:
            found: int | str | NemoVfmError = pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            process = self._members[pipe]
            process.join(5)
            raise UserError(
                f"a worker process ended with exit code {process.exitcode} (-9 means killed, often for lack of "
                f"memory); run the same command again to resume; fewer processes need less memory"
            ) from error
        if isinstance(found, NemoVfmError):
            raise found
        if isinstance(found, str):
            raise DataError(f"a worker process failed:\n{found}")
        return found

    def stop(self) -> None:
        for pipe, process in self._members.items():
            pipe.close()
            process.kill()
        for process in self._members.values():
            process.join(10)


def _give(pipe: Connection, waiting: Iterator[int]) -> bool:
    number = next(waiting, None)
    if number is not None:
        with suppress(BrokenPipeError):  # it died; that is found when its answer is waited for
            pipe.send(number)
    return number is not None


def _serve(pipe: Connection, work: Work) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the whole terminal; who started us ends us
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(work, number))


def _answer(work: Work, number: int) -> int | str | NemoVfmError:
    try:
        work.do(number)
    except NemoVfmError as error:
        return error
    except Exception:
        return traceback.format_exc()
    return number


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
