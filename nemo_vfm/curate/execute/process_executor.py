"""Executes steps on several items at once on this machine, each in a child process of its own."""

import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

from nemo_vfm.core.process import num_cores
from nemo_vfm.curate.execute.inline_executor import present, through
from nemo_vfm.curate.execute.ordered import map_as_completed
from nemo_vfm.curate.execute.work_units import Done, LostItem, ProgressWatch, Step, StepThroughput, Worker, WorkItem


class Processes:
    """Runs the first step in one child process per core; a second step, which holds models, has one worker.

    Args:
        workers: child processes; None takes one a core that this process may use, at most 64.
    """

    def needs_ray(self) -> bool:
        return False

    def __init__(self, *, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}, but it must be at least 1")
        self.workers = workers

    def run(self, steps: Sequence[Step], items: Sequence[WorkItem], watch: ProgressWatch) -> Iterator[Done]:
        count = min(self.workers or min(64, num_cores()), max(1, len(items)))
        watch.steps = [StepThroughput(step.name, workers=1 if place else count) for place, step in enumerate(steps)]
        workers: list[Worker] = []
        free: SimpleQueue[Worker] = SimpleQueue()  # those of the first step; all threads share those of later ones
        lock, model = threading.Lock(), threading.Lock()

        def tick(frames: int) -> None:
            with lock:
                watch.tick(frames)

        def one(item: WorkItem) -> list[object] | LostItem:
            worker = free.get()
            own = ProgressWatch(tick, [StepThroughput(step.name) for step in steps])
            try:
                with present(item) as lost:
                    return lost or list(through([worker, *workers[count:]], item, own, model))
            finally:
                free.put(worker)
                with lock:
                    for total, mine in zip(watch.steps, own.steps, strict=True):
                        total.parts += mine.parts
                        total.busy_s += mine.busy_s

        def stop() -> None:
            for worker in workers:
                worker.stop()

        try:
            for step in [steps[0]] * count + list(steps[1:]):
                workers.append(step.work.start())
            for worker in workers[:count]:
                free.put(worker)
            yield from map_as_completed(one, items, workers=count, give_up=stop)
        finally:
            stop()
