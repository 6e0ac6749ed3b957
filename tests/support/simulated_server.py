"""Simulates a server and a client that asks under a concurrency limit, event by event, without a clock or a thread."""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from nemo_vfm.asking.pace import ConcurrencyLimit, Ticket

ROUND_TRIP_S = 0.002


def log_normal(rng: random.Random) -> float:
    """Seconds that a place is busy with one request."""
    return rng.lognormvariate(math.log(0.25), 0.6)


@dataclass
class SimulatedServer:
    """A server with places, and a client with more requests than anyone can count.

    Args:
        places: requests served at once; more are refused or wait. It may be changed between runs.
        refuses: whether more are refused.
        retry_after_s: what a refusal says.
        timeout_s: of the client.
        slowdown: how much longer a request takes with so many at once: 1 + slowdown * number.
        service_s: draws how long a request takes.
        seed: of the draws.
    """

    places: int
    refuses: bool = False
    retry_after_s: float | None = None
    timeout_s: float = math.inf
    slowdown: float = 0.0
    service_s: Callable[[random.Random], float] = log_normal
    seed: int = 0
    now_s: float = 0.0
    answered: int = 0
    refused: int = 0
    timed_out: int = 0
    sent: int = 0
    limits: list[int] = field(default_factory=list)  #: after each answer

    def __post_init__(self) -> None:
        self._rng, self._numbers = random.Random(self.seed), itertools.count()
        self._events: list[tuple[float, int, str, Ticket | None]] = []
        self._queue: deque[Ticket] = deque()
        self._served: set[Ticket] = set()

    def run(self, limit: ConcurrencyLimit, answers: int) -> None:
        """Until so many more were answered."""
        target = self.answered + answers
        while self.answered < target:
            self._send_all(limit)
            self._next_event(limit)

    def _send_all(self, limit: ConcurrencyLimit) -> None:
        while limit.wait_s(self.now_s) == 0:
            ticket = limit.send(self.now_s)
            assert ticket is not None
            self.sent += 1
            self._arrive(ticket)
        pause_s = limit.wait_s(self.now_s)
        if 0 < pause_s < math.inf:
            self._at(self.now_s + pause_s, "wake", None)

    def _arrive(self, ticket: Ticket) -> None:
        if len(self._served) < self.places:
            self._serve(ticket)
        elif self.refuses:
            self._at(self.now_s + ROUND_TRIP_S, "refused", ticket)
            return
        else:
            self._queue.append(ticket)
        if self.timeout_s < math.inf:
            self._at(self.now_s + self.timeout_s, "timed out", ticket)

    def _serve(self, ticket: Ticket) -> None:
        self._served.add(ticket)
        seconds = self.service_s(self._rng) * (1 + self.slowdown * len(self._served))
        self._at(self.now_s + seconds, "answered", ticket)

    def _at(self, seconds: float, what: str, ticket: Ticket | None) -> None:
        heapq.heappush(self._events, (seconds, next(self._numbers), what, ticket))

    def _next_event(self, limit: ConcurrencyLimit) -> None:
        self.now_s, _, what, ticket = heapq.heappop(self._events)
        if ticket is None:
            return
        if what == "refused":
            self.refused += 1
            limit.record_refusal(ticket, self.now_s, self.retry_after_s)
        elif self._leave(ticket):
            self._count(what, limit, ticket)

    def _leave(self, ticket: Ticket) -> bool:
        """Free its place; False where it had gone before."""
        if ticket in self._queue:
            self._queue.remove(ticket)
            return True
        if ticket not in self._served:
            return False
        self._served.remove(ticket)
        if self._queue:
            self._serve(self._queue.popleft())
        return True

    def _count(self, what: str, limit: ConcurrencyLimit, ticket: Ticket) -> None:
        if what == "answered":
            limit.record_answer(ticket, self.now_s)
            self.answered += 1
            self.limits.append(limit.limit)
        else:
            limit.timed_out(ticket)
            self.timed_out += 1
