"""Keeps one limit of requests under way for each model of each service, shared by everyone who asks it."""

import threading

from nemo_vfm.asking.concurrency_limit import ConcurrencyLimit

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
