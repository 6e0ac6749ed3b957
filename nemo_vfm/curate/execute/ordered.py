"""Runs several pieces of work at once and yields their results, in order or as they come, with bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from nemo_vfm.core.process import num_cores

T = TypeVar("T")
R = TypeVar("R")


def map_in_order(work: Callable[[T], R], items: Iterable[T], *, workers: int | None = None) -> Iterator[R]:
    """`map(work, items)` on threads: decoding, encoding and flow leave the interpreter free.

    For pieces of about equal size whose results may be large: at most two results per worker wait behind a slow piece.

    Args:
        workers: None takes one thread a core that this process may use, at most 16.
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
        finally:
            for future in waiting:
                future.cancel()


def map_as_completed(
    work: Callable[[T], R], items: Iterable[T], *, workers: int, give_up: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, R]]:
    """Results as they come, each with its item's number: a slow item occupies one worker and delays no other.

    Args:
        give_up: called when it ends early, to stop the work in progress, which would otherwise be waited for.
    """
    waiting = enumerate(items)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        # Twice as many as workers, so that none waits while a result is processed.
        running = {pool.submit(work, item): number for number, item in islice(waiting, 2 * workers)}
        try:
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    running.update((pool.submit(work, item), following) for following, item in islice(waiting, 1))
                    yield number, future.result()
        except BaseException:
            give_up()
            raise
        finally:
            for future in running:
                future.cancel()
