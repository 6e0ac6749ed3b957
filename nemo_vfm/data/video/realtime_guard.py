"""Takes real-time priority back from threads when a codec has given it to itself."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def drop_realtime_priority() -> Iterator[None]:
    """Take real-time priority back from every thread of this process that got it meanwhile.

    SVT-AV1 4.1, opened by root, puts the thread that opens it and those that it starts at SCHED_FIFO 99, for good, and
    all that this process begins later is born so. Such threads give way to no ordinary one: a machine of two cores, on
    which two processes had been raised like that, stood still for 80 minutes.
    """
    before = real_time_threads()
    try:
        yield
    finally:
        make_ordinary(real_time_threads() - before)


def make_ordinary(threads: Iterable[int]) -> None:
    """Schedule them as most of what runs on a machine is."""
    for thread in threads:
        with suppress(OSError):  # it has ended
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def real_time_threads() -> frozenset[int]:
    """This process's threads of that priority; where there is no Linux to ask, none."""
    if not hasattr(os, "sched_getscheduler"):
        return frozenset()
    threads, found = [0], set[int]()  # 0 is the one that asks
    with suppress(OSError):
        threads = [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
    for thread in threads:
        with suppress(OSError):
            if os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_FIFO, os.SCHED_RR):
                found.add(thread)
    return frozenset(found)
