"""Executes steps on several items at once on this machine, each in a child process of its own."""

import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

from nemo_vfm.curate.execute.inline_executor import present, timed
from nemo_vfm.curate.execute.ordered import finished, num_cores
from nemo_vfm.curate.execute.work_units import Done, Item, Lost, Step, Throughput, Watch, Worker


class Processes:
    """As many child processes as cores do the first step; a second step, which bears models, has one worker here.

    Args:
        workers: child processes; None takes one a core that this process may use, at most 64.
    """

    def __init__(self, *, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}, but it must be at least 1")
        self.workers = workers

    def needs_ray(self) -> bool:
        """See `Executor`."""
        return False

    def run(self, steps: Sequence[Step], items: Sequence[Item], watch: Watch) -> Iterator[Done]:
        """See `Executor.run`."""
        count = min(self.workers or min(64, num_cores()), max(1, len(items)))
        watch.steps = [Throughput(step.name, workers=1 if place else count) for place, step in enumerate(steps)]
        pools = _StepPools(steps, count, watch)
        try:
            yield from pools.work(items)
        finally:
            pools.stop()


class _StepPools:
    """Threads, each with a worker for the first step; they share those of the later ones."""

    def __init__(self, steps: Sequence[Step], count: int, watch: Watch) -> None:
        self._count, self._watch = count, watch
        self._free: SimpleQueue[Worker] = SimpleQueue()
        self._all: list[Worker] = []
        self._lock, self._model = threading.Lock(), threading.Lock()
        for step in [steps[0]] * count + list(steps[1:]):
            self._all.append(step.work.start())
        for worker in self._all[:count]:
            self._free.put(worker)
        self._later = self._all[count:]

    def work(self, items: Sequence[Item]) -> Iterator[Done]:
        """Results as they come."""
        yield from finished(self._one, items, workers=self._count, give_up=self.stop)

    def _one(self, item: Item) -> list[object] | Lost:
        def tick(frames: int) -> None:
            with self._lock:
                self._watch.tick(frames)

        worker = self._free.get()
        own = Watch(tick, [Throughput(step.step) for step in self._watch.steps])
        try:
            with present(item) as lost:
                return lost or list(self._parts(worker, item, own))
        finally:
            self._free.put(worker)
            with self._lock:
                for total, mine in zip(self._watch.steps, own.steps, strict=True):
                    total.parts += mine.parts
                    total.busy_s += mine.busy_s

    def _parts(self, worker: Worker, item: Item, own: Watch) -> Iterator[object]:
        for part in timed(worker.do(item), own.steps[0], own):
            for later, took in zip(self._later, own.steps[1:], strict=True):
                with self._model:  # one clip at a time
                    (part,) = timed(later.do(part), took, own)
            yield part

    def stop(self) -> None:
        """End all children."""
        for worker in self._all:
            worker.stop()
