# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps a number of questions in flight, and yields each answer as soon as it comes."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


def as_they_come(work: Callable[[Q], A], questions: Iterable[Q], at_once: int) -> Iterator[A]:
    """`work` of each question on threads, in the order of finishing; an exception ends all."""
    pool = ThreadPoolExecutor(max_workers=at_once)
    waiting: set[Future[A]] = set()
    try:
        for question in questions:
            waiting.add(pool.submit(work, question))
            while len(waiting) >= at_once:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
