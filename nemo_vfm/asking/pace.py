"""Decides how many requests to one model may be under way, from its answers, refusals, time-outs and latencies."""

import math
import threading
from dataclasses import dataclass

#: Doubling stops where latency eats so much of it, and by so many standard errors: an early end costs more than a late.
_STOP_SHARE, _STOP_ERRORS = 0.7, 3.0
#: The share at which the number stays: of a server with latency a + b N, that is 75 % of its highest throughput.
_TARGET_SHARE = 0.75
_APART = 1.33  # the higher number over the lower
#: Of a step. One comparison of 32 answers is off by about 0.5, so steps are small until several agree.
_GAIN, _GAIN_GROWTH, _MAX_GAIN = 0.15, 1.25, 0.3
_FEWEST = 8  # answers of a comparison


@dataclass(slots=True)
class _LogMean:
    """Mean of the logarithms of latencies: one answer of an hour must not decide."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, latency_s: float) -> None:
        value = math.log(max(latency_s, 1e-4))
        self.count, self.total, self.squares = self.count + 1, self.total + value, self.squares + value * value

    @property
    def value(self) -> float:
        return self.total / self.count

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return math.sqrt(max(0.0, self.squares / self.count - self.value**2) / self.count)


class LatencyProbe:
    """Finds how many requests a server serves at once from how its latency answers to their number.

    A server that queues never refuses: beyond its capacity K the latency grows with the number N of requests under way,
    and the throughput N / latency (Little's law) does not. A server that batches is slower with each request, too, and
    yet gains. So what counts is the share of an increase that latency eats, s = d log(latency) / d log(N): 0 below K, 1
    beyond it. A fixed baseline, as in TCP Vegas, would take longer questions, or a larger batch, for a queue. Here two
    numbers close to each other are compared at about the same time: doubled first, then alternating.
    """

    def __init__(self, *, start: int, most: int) -> None:
        self.number, self._most = min(start, most), most
        self._doubling, self._was_full = True, False
        self._low, self._gain, self._last_room = float(self.number), _GAIN, 0.0
        self._before: _LogMean | None = None
        self._now, self._skip = _LogMean(), 0

    def add(self, latency_s: float) -> None:
        """Take in the latency of an answer, in seconds; as many requests as proposed were under way."""
        if self._skip:
            self._skip -= 1
            return
        self._now.add(latency_s)
        if self._now.count < max(_FEWEST, self.number):
            return
        if self._doubling:
            self._double()
            return
        low = max(1, round(self._low))
        if self._before is None:
            self._move(min(self._most, max(low + 1, round(_APART * low))), self._now)
            return
        share = (self._now.value - self._before.value) / math.log(self.number / low) if self.number > low else 0.0
        room = _TARGET_SHARE - max(-1.0, min(2.0, share))
        # Further where one comparison says the same as the one before.
        self._gain = min(_MAX_GAIN, self._gain * _GAIN_GROWTH) if room * self._last_room > 0 else _GAIN
        self._last_room = room
        self._low = min(float(self._most), max(1.0, self._low * math.exp(self._gain * room)))
        self._move(max(1, round(self._low)), None)

    def restart(self, number: int) -> None:
        """Go on near another number, which refusals or time-outs have shown."""
        self._doubling = False
        self._low, self._gain, self._last_room = float(number), _GAIN, 0.0
        self._move(number, None)

    def _double(self) -> None:
        """Double until latency grows nearly as much as the number; then go back to the capacity, N / growth."""
        if self._before is not None:
            grown, error = self._now.value - self._before.value, math.hypot(self._now.error, self._before.error)
            if grown > max(_STOP_SHARE * math.log(2.0), _STOP_ERRORS * error):
                capacity = max(1, round(self.number / min(2.0, math.exp(grown))))
                # Doubled once more before that is believed: without the second look 4 % of the runs stopped at half of
                # the capacity, and took seconds to come back.
                self.restart(capacity) if self._was_full else self._move(capacity, None)
                self._was_full = True
                return
        if self.number == self._most:
            self.restart(self._most)
        else:
            self._move(min(2 * self.number, self._most), self._now)

    def _move(self, number: int, before: _LogMean | None) -> None:
        self._skip = self.number  # as many were sent before the number changed
        self.number, self._before, self._now = number, before, _LogMean()


#: Time-outs alone do not lower the limit below this: where questions simply take too long, fewer at once do not help.
_FEWEST_AFTER_TIME_OUTS = 8
_BACKOFF_S = 0.25  # of the first refusal that says nothing of how long to wait


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request under way."""

    sent_s: float  #: when
    full: bool  #: whether as many were under way as may be; else its latency says nothing of the limit


class ConcurrencyLimit:
    """How many requests may be under way at one model of one service.

    It reads no clock and starts no thread: every method is told the time. Threads may share it.

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
        self._lock = threading.RLock()
        self.in_flight = 0  # how many are under way
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

    def wait_s(self, now_s: float) -> float:
        """0 where one more may be sent; else seconds until then, infinite where one under way has to end first."""
        with self._lock:
            return math.inf if self.in_flight >= self.limit else max(0.0, self._paused_until_s - now_s)

    def send(self, now_s: float) -> Ticket | None:
        """Count a request that is sent now; None where none may be."""
        with self._lock:
            if self.wait_s(now_s) > 0:
                return None
            self.in_flight += 1
            return Ticket(now_s, self.in_flight >= self.limit)

    def record_answer(self, ticket: Ticket, now_s: float) -> None:
        """Count an answer."""
        with self._lock:
            self._release()
            self._fruitless_cuts, self._time_outs = 0, max(0, self._time_outs - 1)
            if self._ceiling is None:
                if ticket.full:
                    self._probe.add(now_s - ticket.sent_s)
                return
            # One more a quarter of a round up to the number that was refused, then a doubling step every four rounds.
            self._answers_since_step += 1
            below = self._accepted < self._ceiling - 1
            if self._answers_since_step < (self._accepted // 4 if below else 4 * self._accepted):
                return
            self._answers_since_step = 0
            self._accepted = min(self._most, self._accepted + (1 if below else self._step))
            self._step = 1 if below else 2 * self._step
            if self._accepted > 1.5 * self._ceiling or self._accepted == self._most:
                self._ceiling = None
                self._probe.restart(self._accepted)

    def record_failure(self, ticket: Ticket) -> None:
        """Count a request that was taken and failed, as by a 500: it says nothing of the limit."""
        with self._lock:
            self._release()

    def timed_out(self, ticket: Ticket) -> None:
        """Count a time-out. Where most requests end so, the service may queue them for too long: halve the limit."""
        with self._lock:
            self._release()
            self._time_outs += 1
            if self._time_outs > max(8, self.limit // 2):
                self._time_outs = 0
                self._accepted = max(min(self.limit, _FEWEST_AFTER_TIME_OUTS), self.limit // 2)
                self._probe.restart(self._accepted)

    def record_refusal(self, ticket: Ticket, now_s: float, retry_after_s: float | None) -> float:
        """Count a refusal, and return in how many seconds the same request may be sent again.

        The limit becomes the number that the service did take, but at least half of what it was. The first refusals
        hold back nobody else: a service with so many places takes another request as soon as one is free. Where a
        request that was sent after that is refused as well, and nothing was answered, the service means all of us.
        """
        with self._lock:
            self.in_flight -= 1
            if self._refused_since_s is None:
                self._refused_since_s = now_s
            if ticket.sent_s >= self._cut_s:
                # Begin to lower the limit; refusals of what was sent before belong to the same cut.
                limit = self.limit
                if self._ceiling is None or self._fruitless_cuts == 0:
                    self._ceiling = limit
                self._accepted, self._floor = limit, max(1, limit // 2)
                self._cut_s, self._answers_since_step, self._step = now_s, 0, 1
                self._fruitless_cuts += 1
            self._accepted = max(self._floor, min(self._accepted, self.in_flight))
            wait_s = _BACKOFF_S * 2.0 ** min(self._fruitless_cuts - 1, 16)  # where the service requests nothing
            if retry_after_s is not None and not math.isnan(retry_after_s):
                wait_s = max(0.0, retry_after_s)
            wait_s = min(wait_s, self._max_wait_s)
            if self._fruitless_cuts > 1:
                self._paused_until_s = max(self._paused_until_s, now_s + wait_s)
            return wait_s

    def refused_for_s(self, now_s: float) -> float:
        """For how many seconds there were nothing but refusals."""
        with self._lock:
            return 0.0 if self._refused_since_s is None else now_s - self._refused_since_s

    def _release(self) -> None:
        self.in_flight -= 1
        self._refused_since_s = None
        self.was_reached = True


_LIMITS: dict[tuple[str, int, int, float], ConcurrencyLimit] = {}
_LOCK = threading.Lock()


class Pace:
    """How fast a model is asked. Its capacity need not be known: it is measured, and measured again as it changes.

    Args:
        start: requests under way at first; doubled as long as that helps.
        most: requests under way at most; each has a thread. 1 for a model that no two threads may use.
        patience_s: seconds of nothing but refusals (429, 503, 529, no connection) after which the run ends; where
            nothing has listened since it began, half a minute is enough.
        max_wait_s: the longest wait for a service that refuses, whatever its Retry-After says.
    """

    def __init__(self, *, start: int = 8, most: int = 256, patience_s: float = 600.0, max_wait_s: float = 60.0) -> None:
        if start < 1 or most < 1 or patience_s < 0 or max_wait_s <= 0:
            raise ValueError(
                f"start {start}, most {most}, patience_s {patience_s} and max_wait_s {max_wait_s}: expected at least "
                "1, 1 and 0, and above 0"
            )
        self.start, self.most, self.patience_s, self.max_wait_s = start, most, patience_s, max_wait_s

    def new_limit(self) -> ConcurrencyLimit:
        """A limit of its own."""
        return ConcurrencyLimit(start=self.start, most=self.most, max_wait_s=self.max_wait_s)

    def limit_of(self, place: str) -> ConcurrencyLimit:
        """The limit for a service and model in this process; a later stage begins with what an earlier one found."""
        with _LOCK:
            settings = (place, self.start, self.most, self.max_wait_s)
            if settings not in _LIMITS:
                _LIMITS[settings] = self.new_limit()
            return _LIMITS[settings]
