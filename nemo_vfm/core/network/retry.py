"""Decides which responses of a server to retry, and how long to wait before the next attempt."""

import random
import time
from email.utils import parsedate_to_datetime

from nemo_vfm.core.log import warn_once

#: Statuses of temporary failures.
RETRIED = frozenset({408, 429, *range(500, 600)})


class RetryableError(Exception):
    """A failure after which the request may be sent again.

    Args:
        reason: what went wrong, for the message after the last attempt.
        wait_s: the wait that the server requests; None if it requests none.
    """

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def wait_s(number: int, requested_s: float | None, max_wait_s: float) -> float:
    """The wait after failed attempt `number`, from 0: the server's request, else exponential backoff with jitter."""
    backoff = random.uniform(0.5, 1.0) * 2.0**number
    return min(max_wait_s, backoff if requested_s is None else max(requested_s, 0.0))


def retry_after(text: str | None) -> float | None:
    """Parse a Retry-After header into seconds; return None if it is missing or invalid."""
    if not text:
        return None
    try:
        is_number = text.strip()[:12].replace(".", "", 1).isdigit()
        seconds = float(text) if is_number else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    if seconds > 600:
        warn_once(f"a server requests a wait of {seconds:.3g} s; waiting max_wait_s instead")
    return seconds
