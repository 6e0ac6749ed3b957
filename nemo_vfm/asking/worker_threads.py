"""Runs blocking calls on threads that are started as they are needed, and that hold up nobody's exit."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

Task = Callable[[], None]


class WorkerThreads:
    """Threads that wait for tasks. They are daemons: after Ctrl-C a process does not wait for a service's time-out."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._idle, self._count = threading.Semaphore(0), 0

    def submit(self, task: Task) -> None:
        """Run it at once; a task reports its own errors."""
        if not self._idle.acquire(blocking=False):
            self._count += 1
            threading.Thread(target=self._work, name=f"asking-{self._count}", daemon=True).start()
        self._tasks.put(task)

    def close(self) -> None:
        """End each thread after its present task, without waiting."""
        for _ in range(self._count):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            self._idle.release()
