# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Pieces of work in, their results in the same order out; several at once, and no more in memory than are at work."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ordered(
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int | None = None,
    give_up: Callable[[], None] = lambda: None,
) -> Iterator[R]:
    """`map(work, items)` on threads: decoding, encoding and flow leave the interpreter free.

    Args:
        workers: None takes one thread a core that this process may use, at most 16.
        give_up: called when it ends early, to end what is at work; else that would be waited for.
    """
    if workers is None:
        workers = min(16, num_cores())
    with ThreadPoolExecutor(max_workers=workers) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BaseException:
            give_up()
            raise
        finally:
            for future in waiting:
                future.cancel()


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
