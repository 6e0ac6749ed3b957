"""Executes steps on actors of a Ray cluster, in numbers that make every step equally quick."""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from nemo_vfm.core.log import info, warn
from nemo_vfm.core.network.permission import NOTHING, Permissions, Recipient, ray_place
from nemo_vfm.core.optional import needs_packages, require
from nemo_vfm.core.types.component import PartRefused
from nemo_vfm.curate.execute.inline_executor import present
from nemo_vfm.curate.execute.ordered import map_as_completed
from nemo_vfm.curate.execute.work_units import Done, LostItem, ProgressWatch, Step, StepThroughput, Tick, Work, WorkItem

END = "end"
QUEUED_PARTS = 8  # that a producer may be ahead of the consumer of its parts
_BALANCE_EVERY_S = 20.0
_OWN = (None, "auto", "local")  # a cluster that the user has begun, or names in RAY_ADDRESS


@dataclass(eq=False, slots=True)
class Crew:
    """Actors of one step. Models are loaded when an actor begins, and live as long as it does."""

    step: Step
    gpus: float  #: GPUs, or a part of one, for each actor
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _idle: deque[Any] = field(default_factory=deque)
    _count: int = 0
    _wanted: int = 0

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
        """The parts of one item, one after the other, and END, without which a broken stream would go unnoticed."""
        yield from self._worker.do(item)
        yield END


def ray_module(*, own: bool = False) -> Any:
    """Ray, with its usage reports turned off.

    Args:
        own: a cluster of this run alone will be begun: a token of its own keeps others away from it. Ray reads this
            when it is imported; set later, its processes demand a token that the caller does not send.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if own and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    return require("ray", purpose="The Ray executor")


@needs_packages("ray")
class Ray:
    """Actors on a Ray cluster: each loads its models once, and takes one piece of work at a time.

    A step that is slow gets more actors than one that is quick, measured while the work goes on; an actor that is ahead
    of the next step waits. The run folder, and the videos where they are files, must lie where every node sees them. An
    actor that dies is replaced, and its item begun once more.

    Args:
        address: of a cluster, such as `auto` or `ray://head:10001`; None takes the one that RAY_ADDRESS names, as in a
            job of the launcher's, and else begins one on this machine, for this run. A cluster elsewhere gets programs
            and videos, so the user allows it: `--allow-host ray://head:10001`.
        cpus_per_actor: cores each actor counts for, also a part of one.
        max_actors: of each step at most.
        attempts: how often an item is begun before it has failed.
        permissions: given by the program that composes the recipe, never by a recipe.
    """

    def needs_ray(self) -> bool:
        return True

    def __init__(
        self, *, address: str | None = None, cpus_per_actor: float = 1.0, max_actors: int = 256, attempts: int = 3,
        permissions: Permissions = NOTHING,
    ) -> None:  # fmt: skip
        if cpus_per_actor <= 0 or max_actors < 1 or attempts < 1:
            raise ValueError(
                f"cpus_per_actor ({cpus_per_actor}) must be above 0, max_actors ({max_actors}) and attempts "
                f"({attempts}) at least 1"
            )
        if address not in _OWN and not permissions.allows(place := ray_place(address)):
            raise PartRefused(permissions.refusal(place), "address")
        self.address, self.cpus_per_actor = address, cpus_per_actor
        self.max_actors, self.attempts = max_actors, attempts

    def recipients(self) -> Sequence[Recipient]:
        address = self.address or os.environ.get("RAY_ADDRESS")
        if address in ("", *_OWN):
            return ()
        origin = "RAY_ADDRESS" if self.address is None else "allowed by you"
        return (Recipient(str(address), "programs, videos and results, as a Ray cluster", source=origin),)

    def run(self, steps: Sequence[Step], items: Sequence[WorkItem], watch: ProgressWatch) -> Iterator[Done]:
        address = self.address or os.environ.get("RAY_ADDRESS")
        ray = ray_module(own=address is None)
        # On loopback as far as Ray lets one choose. Told that metrics have no port, -1, its raylet dies at once.
        own: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        where = own if address is None else {"address": address}
        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level="ERROR", **where)
        pipeline = _Pipeline(steps, self, watch)
        try:  # no more items are begun than there may be actors
            yield from map_as_completed(pipeline.item, items, workers=pipeline.most)
        finally:
            for crew in pipeline.crews:  # actors at work end with it, or with the cluster
                crew.want(0)


class _Pipeline:
    """One run of the steps: threads here wait for actors there."""

    def __init__(self, steps: Sequence[Step], settings: Ray, watch: ProgressWatch) -> None:
        self._ray = ray_module()
        self._settings, self._watch = settings, watch
        there = self._ray.cluster_resources()
        self._cpus, self._gpus = float(there.get("CPU", 1)), float(there.get("GPU", 0))
        self.crews = []
        for step in steps:  # one that would like a GPU does without where the cluster has none
            cpus = min(step.cpus * settings.cpus_per_actor, self._cpus)
            self.crews.append(Crew(Step(step.name, step.work, cpus, step.gpus), gpus=min(step.gpus, self._gpus)))
        watch.steps = [StepThroughput(step.name) for step in steps]
        self._lock, self._items_done, self._balanced_s = threading.Lock(), 0, time.monotonic()
        self.most = max(1, min(settings.max_actors, int(self._cpus / settings.cpus_per_actor)))
        self._balance()

    def _balance(self) -> None:
        """Give each step as many actors as it needs, judged by the time that it has taken so far."""
        done = max(1, self._items_done)
        needs = [
            StepResources(took.busy_s / done or 1.0, actors.step.cpus, actors.gpus)
            for actors, took in zip(self.crews, self._watch.steps, strict=True)
        ]
        counts = shares(needs, cpus=self._cpus, gpus=self._gpus, most=self.most)
        for actors, count, took in zip(self.crews, counts, self._watch.steps, strict=True):
            actors.want(count)
            if took.workers != count:
                info(f"{took.step}: {count} actors")
            took.workers = max(took.workers, count)

    def item(self, item: WorkItem) -> list[object] | LostItem:
        with present(item) as lost:
            result = lost or self._attempts(item)
        with self._lock:
            self._items_done += 1
            if time.monotonic() - self._balanced_s > _BALANCE_EVERY_S:
                self._balance()
                self._balanced_s = time.monotonic()
        return result

    def _attempts(self, item: WorkItem) -> list[object] | LostItem:
        message = ""
        for attempt in range(1, self._settings.attempts + 1):
            try:
                # Each part is sent on to the next step while the one before goes on.
                with ThreadPoolExecutor(QUEUED_PARTS, thread_name_prefix="parts") as onward:
                    later: list[Future[object]] = []
                    for part in self._stream(item):
                        while sum(not future.done() for future in later) >= QUEUED_PARTS:
                            time.sleep(0.005)
                        later.append(onward.submit(self._onward, part))
                    parts = [future.result() for future in later]
                return [part for part in parts if not isinstance(part, Tick)]
            except self._ray.exceptions.RayActorError:
                message = f"its worker died {attempt} times"
                warn(f"{item.request.get('name', 'an item')}: a worker died; the item is retried")
        return LostItem(message)

    def _stream(self, item: WorkItem) -> Iterator[Any]:
        """The parts of the first step: references, whose contents stay where they are until somebody wants them."""
        with self.crews[0].one() as actor:
            start, held = time.perf_counter(), None
            for reference in self._ask(actor, WorkItem(item.request, item.megapixels)):
                if held is not None:
                    yield held
                    self._add_time(0, 0.0, parts=1)
                held = reference
            assert self._get(held) == END  # or it raises what ended the stream
            self._add_time(0, time.perf_counter() - start)

    def _onward(self, part: Any) -> object:
        """One part through the later steps."""
        for place in range(1, len(self.crews)):
            with self.crews[place].one() as actor:
                start = time.perf_counter()
                part, end = (self._get(reference) for reference in self._ask(actor, part))
                assert end == END
                self._add_time(place, time.perf_counter() - start, parts=1)
        done = part if len(self.crews) > 1 else self._get(part)
        if isinstance(done, Tick):
            with self._lock:
                self._watch.tick(done.frames)
        return done

    @staticmethod
    def _ask(actor: Any, item: Any) -> Iterator[Any]:
        options = actor.parts.options(num_returns="streaming", _generator_backpressure_num_objects=QUEUED_PARTS)
        yield from options.remote(item)

    def _get(self, reference: Any) -> object:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None

    def _add_time(self, place: int, seconds: float, *, parts: int = 0) -> None:
        with self._lock:
            self._watch.steps[place].busy_s += seconds
            self._watch.steps[place].parts += parts


@dataclass(frozen=True, slots=True)
class StepResources:
    """What a step takes."""

    busy_s: float  #: seconds that one worker works for one item of the pipeline; 0 where it is not known yet
    cpus: float  #: cores a worker
    gpus: float  #: GPUs a worker


def shares(needs: Sequence[StepResources], *, cpus: float, gpus: float, most: int) -> list[int]:
    """Workers a step: one each, and then always one more for the slowest step, while there is room for it.

    A pipeline gives as many items a second as its slowest step, workers / busy_s; so this raises the least of these
    ratios as long as the machine allows, and stops where more of any other step would only wait.

    Args:
        most: workers that any step may have.
    """
    workers = [1] * len(needs)
    while True:
        slowest = min(range(len(needs)), key=lambda step: workers[step] / max(needs[step].busy_s, 1e-9))
        used_cpus = sum(count * need.cpus for count, need in zip(workers, needs, strict=True)) + needs[slowest].cpus
        used_gpus = sum(count * need.gpus for count, need in zip(workers, needs, strict=True)) + needs[slowest].gpus
        if used_cpus > cpus + 1e-9 or used_gpus > gpus + 1e-9 or workers[slowest] >= most:
            return workers
        workers[slowest] += 1
