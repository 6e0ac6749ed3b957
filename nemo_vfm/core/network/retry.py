# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which answers of a server are worth another try, and how long to wait before it."""

import random
import time
from email.utils import parsedate_to_datetime

from nemo_vfm.core.log import warn_once

#: Statuses that pass by themselves.
RETRIED = frozenset({408, 429, *range(500, 600)})


class TryAgain(Exception):
    """Worth another try.

    Args:
        reason: what went wrong, for the message after the last try.
        wait_s: how long the server asks to wait; None where it does not say.
    """

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def wait_s(number: int, asked_s: float | None, max_wait_s: float) -> float:
    """Twice as long each time, a random part of it; as long as the server asks for, but never above the limit.

    Args:
        number: of the try that failed, from 0.
        asked_s: by the server.
        max_wait_s: the limit.
    """
    usual = random.uniform(0.5, 1.0) * 2.0**number
    return min(max_wait_s, usual if asked_s is None else max(asked_s, 0.0))


def retry_after(text: str | None) -> float | None:
    """Seconds of a header Retry-After; None where it says nothing that makes sense."""
    if not text:
        return None
    try:
        seconds = float(text) if text.strip()[:12].replace(".", "", 1).isdigit() else _until(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if seconds > 600:
        warn_once(f"a service asks to wait {seconds:.3g} s; waiting max_wait_s instead")
    return seconds


def _until(text: str) -> float:
    return parsedate_to_datetime(text).timestamp() - time.time()
