"""Finds how many requests a server serves at once from how its latency answers to their number.

A server that queues never refuses: beyond its capacity K the latency grows with the number N of requests under way,
and the throughput N / latency (Little's law) does not. A server that batches is slower with each request, too, and yet
gains. So what counts is the share of an increase that latency eats, s = d log(latency) / d log(N): 0 below K, 1 beyond
it. A fixed baseline, as in TCP Vegas, would take longer questions, or a larger batch, for a queue. Here two numbers
close to each other are compared at about the same time.
"""

import math
from dataclasses import dataclass

#: Doubling stops where latency eats so much of it, and by so many standard errors: an early end costs more than a late.
_STOP_SHARE, _STOP_ERRORS = 0.7, 3.0
#: The share at which the number stays: of a server with latency a + b N, that is 75 % of its highest throughput.
_TARGET_SHARE = 0.75
_APART = 1.33  # the higher number over the lower
#: Of a step. One comparison of 32 answers is off by about 0.5, so steps are small until several agree.
_GAIN, _GAIN_GROWTH, _MOST_GAIN = 0.15, 1.25, 0.3
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
    """Proposes a number of requests under way: doubled first, then alternating between two close numbers.

    Args:
        start: the first number.
        most: never more.
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
        if self._now.count >= max(_FEWEST, self.number):
            self._double() if self._doubling else self._alternate()

    def restart(self, number: int) -> None:
        """Go on near another number, which refusals or time-outs have shown."""
        self._doubling = False
        self._low, self._gain, self._last_room = float(number), _GAIN, 0.0
        self._move(number, None)

    def _double(self) -> None:
        if self._before is not None and self._is_full(self._before):
            self._stop_doubling(math.exp(self._now.value - self._before.value))
        elif self.number == self._most:
            self.restart(self._most)
        else:
            self._move(min(2 * self.number, self._most), self._now)

    def _is_full(self, before: _LogMean) -> bool:
        """Whether latency has grown nearly as much as the number."""
        grown, error = self._now.value - before.value, math.hypot(self._now.error, before.error)
        return grown > max(_STOP_SHARE * math.log(2.0), _STOP_ERRORS * error)

    def _stop_doubling(self, grown: float) -> None:
        """Go back to the capacity, N / (latency growth); double once more before that is believed.

        Without the second look 4 % of the runs stopped at half of the capacity, and took seconds to come back.
        """
        capacity = max(1, round(self.number / min(2.0, grown)))
        self.restart(capacity) if self._was_full else self._move(capacity, None)
        self._was_full = True

    def _alternate(self) -> None:
        low = max(1, round(self._low))
        if self._before is None:
            self._move(min(self._most, max(low + 1, round(_APART * low))), self._now)
            return
        share = (self._now.value - self._before.value) / math.log(self.number / low) if self.number > low else 0.0
        self._step(_TARGET_SHARE - max(-1.0, min(2.0, share)))
        self._move(max(1, round(self._low)), None)

    def _step(self, room: float) -> None:
        """Move by what one comparison says, further where it says the same as the one before."""
        self._gain = min(_MOST_GAIN, self._gain * _GAIN_GROWTH) if room * self._last_room > 0 else _GAIN
        self._last_room = room
        self._low = min(float(self._most), max(1.0, self._low * math.exp(self._gain * room)))

    def _move(self, number: int, before: _LogMean | None) -> None:
        self._skip = self.number  # as many were sent before the number changed
        self.number, self._before, self._now = number, before, _LogMean()
