"""Runs one step on a changing number of Ray actors, each with one piece of work at a time."""

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from nemo_vfm.core.optional import require
from nemo_vfm.curate.execute.work_units import Step, Work

END = "end"
QUEUED_PARTS = 8  # that a producer may be ahead of whoever takes its parts


class Crew:
    """Actors of one step. Models are loaded when an actor begins, and live as long as it does.

    Args:
        step: what they do.
        gpus: GPUs, or a part of one, for each actor.
    """

    def __init__(self, step: Step, *, gpus: float) -> None:
        self.step, self.gpus = step, gpus
        self._changed = threading.Condition()
        self._idle: deque[Any] = deque()
        self._count = self._wanted = 0

    def want(self, count: int) -> None:
        """From now on so many; surplus actors go when they have finished what they do."""
        with self._changed:
            self._wanted = count
            while self._count > count and self._idle:
                self._end(self._idle.pop())
            while self._count < count:
                self._idle.append(self._begin())
            self._changed.notify_all()

    @contextmanager
    def one(self) -> Iterator[Any]:
        """An actor for the length of a block. One that dies in it is replaced; the block sees the error."""
        with self._changed:
            while not self._idle:
                self._changed.wait()
            actor = self._idle.popleft()
        try:
            yield actor
        except BaseException:
            with self._changed:
                self._end(actor)
                if self._count < self._wanted:
                    self._idle.append(self._begin())
                self._changed.notify_all()
            raise
        with self._changed:
            if self._count > self._wanted:
                self._end(actor)
            else:
                self._idle.append(actor)
            self._changed.notify()

    def stop(self) -> None:
        """End those that are idle; the others end with the cluster, or with their work."""
        self.want(0)

    def _begin(self) -> Any:
        ray = ray_module()
        actor = ray.remote(_Actor).options(num_cpus=self.step.cpus, num_gpus=self.gpus, max_restarts=0)
        self._count += 1
        return actor.remote(self.step.work)

    def _end(self, actor: Any) -> None:
        self._count -= 1
        with suppress(Exception):
            ray_module().kill(actor)


class _Actor:
    """What runs in a Ray worker process: the same worker as anywhere else."""

    def __init__(self, work: Work) -> None:
        self._worker = work.start()

    def parts(self, item: Any) -> Iterator[Any]:
        """The parts of one item, one after the other, and END: of a stream that broke off nobody else could tell."""
        yield from self._worker.do(item)
        yield END


def ray_module(*, own: bool = False) -> Any:
    """Ray, told to report to nobody.

    Args:
        own: a cluster of this run alone will be begun: a token of its own keeps others away from it. Ray reads this
            when it is imported; told later, its processes ask for a token that the caller does not send.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if own and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    return require("ray", purpose="The Ray executor")
