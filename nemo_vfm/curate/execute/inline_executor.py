"""Executes steps in this process, one item after the other: for small runs and for debugging."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from nemo_vfm.core.errors import DataError, StoreDenied, StoreUnreachable
from nemo_vfm.curate.execute.work_units import (
    Done,
    LostItem,
    ProgressWatch,
    Step,
    StepThroughput,
    Tick,
    Worker,
    WorkItem,
)


class Inline:
    """Does one item at a time, in this process.

    Args:
        isolated: media are decoded in one limited child process beside this one. False does it in this very process,
            where a debugger sees it and a damaged file can end the run.
    """

    def needs_ray(self) -> bool:
        return False

    def __init__(self, *, isolated: bool = True) -> None:
        self.isolated = isolated

    def run(self, steps: Sequence[Step], items: Sequence[WorkItem], watch: ProgressWatch) -> Iterator[Done]:
        workers: list[Worker] = []
        watch.steps = [StepThroughput(step.name, workers=1) for step in steps]
        try:
            for step in steps:
                workers.append(step.work.start(isolated=self.isolated))
            for number, item in enumerate(items):
                with present(item) as lost:
                    yield number, lost or list(through(workers, item, watch))
        finally:
            for worker in workers:
                worker.stop()


def through(
    workers: Sequence[Worker],
    item: object,
    watch: ProgressWatch,
    one_at_a_time: AbstractContextManager[object] = nullcontext(),
) -> Iterator[object]:
    """An item's parts, each taken through all the steps; what each took is added to the watch.

    Args:
        one_at_a_time: held while a worker of a later step, which several threads may share, is at work.
    """
    first, *rest = workers
    for part in time_parts(first.do(item), watch.steps[0], watch):
        for worker, took in zip(rest, watch.steps[1:], strict=True):
            with one_at_a_time:
                (part,) = time_parts(worker.do(part), took, watch)
        yield part


def time_parts(parts: Iterator[object], took: StepThroughput, watch: ProgressWatch) -> Iterator[object]:
    """The parts of a step, without its ticks; only the time spent producing them is counted."""
    start = time.perf_counter()
    for part in parts:
        took.busy_s += time.perf_counter() - start
        if isinstance(part, Tick):
            watch.tick(part.frames)
        else:
            took.parts += 1
            yield part
        start = time.perf_counter()
    took.busy_s += time.perf_counter() - start


@contextmanager
def present(item: WorkItem) -> Iterator[LostItem | None]:
    """Make the item's file available while the block runs; yields why not if it cannot be had any more.

    Raises:
        StoreUnreachable: its store does not answer, so all other items would fail, too.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(item.fetch())
        except StoreUnreachable:
            raise
        except (DataError, StoreDenied) as error:
            yield LostItem(str(error))
        else:
            yield None
