"""Decides how many requests to one model may be under way, from its answers, refusals, time-outs and latencies.

It reads no clock and starts no thread: every method is told the time. Threads may share it.
"""

import math
import threading
from dataclasses import dataclass

from nemo_vfm.asking.latency_probe import LatencyProbe

#: Time-outs alone do not lower the limit below this: where questions simply take too long, fewer at once do not help.
_FEWEST_AFTER_TIME_OUTS = 8
_BACKOFF_S = 0.25  # of the first refusal that says nothing of how long to wait


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request under way.

    Args:
        sent_s: when.
        full: whether as many were under way as may be; else its latency says nothing of the limit.
    """

    sent_s: float
    full: bool


class ConcurrencyLimit:
    """How many requests may be under way at one model of one service.

    Until the first refusal the number is that of a `LatencyProbe`. From then on it is what the service took: it grows
    quickly up to the number that was refused, then in doubling steps, and without a refusal it is forgotten.

    Args:
        start: the first limit.
        most: never more.
        max_wait_s: the longest pause, whatever Retry-After says.
    """

    def __init__(self, *, start: int, most: int, max_wait_s: float) -> None:
        self._most, self._max_wait_s = most, max_wait_s
        self._probe = LatencyProbe(start=start, most=most)
        self._lock = threading.Lock()
        self._in_flight = 0
        self._ceiling: int | None = None  # the number that was refused
        self._accepted, self._floor = min(start, most), 1
        self._cut_s, self._fruitless_cuts = -math.inf, 0
        self._answers_since_step, self._step = 0, 1
        self._paused_until_s = -math.inf
        self._refused_since_s: float | None = None
        self._time_outs = 0
        self.was_reached = False  # whether the service has ever said anything

    @property
    def limit(self) -> int:
        """How many may be under way now."""
        return self._probe.number if self._ceiling is None else self._accepted

    @property
    def in_flight(self) -> int:
        """How many are under way."""
        return self._in_flight

    def wait_s(self, now_s: float) -> float:
        """0 where one more may be sent; else seconds until then, infinite where one under way has to end first."""
        with self._lock:
            return self._wait_s(now_s)

    def send(self, now_s: float) -> Ticket | None:
        """Count a request that is sent now; None where none may be."""
        with self._lock:
            if self._wait_s(now_s) > 0:
                return None
            self._in_flight += 1
            return Ticket(now_s, self._in_flight >= self.limit)

    def answered(self, ticket: Ticket, now_s: float) -> None:
        """Count an answer."""
        with self._lock:
            self._taken()
            self._fruitless_cuts, self._time_outs = 0, max(0, self._time_outs - 1)
            if self._ceiling is not None:
                self._grow(self._ceiling)
            elif ticket.full:
                self._probe.add(now_s - ticket.sent_s)

    def failed(self, ticket: Ticket) -> None:
        """Count a request that was taken and failed, as by a 500: it says nothing of the limit."""
        with self._lock:
            self._taken()

    def timed_out(self, ticket: Ticket) -> None:
        """Count a time-out. Where most requests end so, the service may queue them for too long: halve the limit."""
        with self._lock:
            self._taken()
            self._time_outs += 1
            if self._time_outs > max(8, self.limit // 2):
                self._time_outs = 0
                self._accepted = max(min(self.limit, _FEWEST_AFTER_TIME_OUTS), self.limit // 2)
                self._probe.restart(self._accepted)

    def refused(self, ticket: Ticket, now_s: float, retry_after_s: float | None) -> float:
        """Count a refusal, and return in how many seconds the same request may be sent again.

        The limit becomes the number that the service did take, but at least half of what it was. The first refusals
        hold back nobody else: a service with so many places takes another request as soon as one is free. Where a
        request that was sent after that is refused as well, and nothing was answered, the service means all of us.
        """
        with self._lock:
            self._in_flight -= 1
            if self._refused_since_s is None:
                self._refused_since_s = now_s
            if ticket.sent_s >= self._cut_s:
                self._cut(now_s)
            self._accepted = max(self._floor, min(self._accepted, self._in_flight))
            wait_s = self._backoff_s(retry_after_s)
            if self._fruitless_cuts > 1:
                self._paused_until_s = max(self._paused_until_s, now_s + wait_s)
            return wait_s

    def refused_for_s(self, now_s: float) -> float:
        """For how many seconds there were nothing but refusals."""
        with self._lock:
            return 0.0 if self._refused_since_s is None else now_s - self._refused_since_s

    def _wait_s(self, now_s: float) -> float:
        return math.inf if self._in_flight >= self.limit else max(0.0, self._paused_until_s - now_s)

    def _taken(self) -> None:
        self._in_flight -= 1
        self._refused_since_s = None
        self.was_reached = True

    def _cut(self, now_s: float) -> None:
        """Begin to lower the limit; refusals of what was sent before belong to the same cut."""
        limit = self.limit
        if self._ceiling is None or self._fruitless_cuts == 0:
            self._ceiling = limit
        self._accepted, self._floor = limit, max(1, limit // 2)
        self._cut_s, self._answers_since_step, self._step = now_s, 0, 1
        self._fruitless_cuts += 1

    def _backoff_s(self, retry_after_s: float | None) -> float:
        """What the service requests, else a time that doubles with each cut."""
        own_s = _BACKOFF_S * 2.0 ** min(self._fruitless_cuts - 1, 16)
        requested_s = own_s if retry_after_s is None or math.isnan(retry_after_s) else max(0.0, retry_after_s)
        return min(requested_s, self._max_wait_s)

    def _grow(self, ceiling: int) -> None:
        """One more a quarter of a round up to the number that was refused, then a doubling step every four rounds."""
        self._answers_since_step += 1
        below = self._accepted < ceiling - 1
        if self._answers_since_step < (self._accepted // 4 if below else 4 * self._accepted):
            return
        self._answers_since_step = 0
        self._accepted = min(self._most, self._accepted + (1 if below else self._step))
        self._step = 1 if below else 2 * self._step
        if self._accepted > 1.5 * ceiling or self._accepted == self._most:
            self._ceiling = None
            self._probe.restart(self._accepted)
