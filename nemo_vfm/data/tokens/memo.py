"""Caches the last few values that were computed by number, for threads that ask for them again."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Memo(Generic[T]):
    """What was computed last; another process begins with none."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._found: OrderedDict[int, T] = OrderedDict()

    def __reduce__(self) -> "tuple[type[Memo[T]], tuple[int]]":
        return Memo, (self._most,)

    def get(self, number: int, compute: Callable[[int], T]) -> T:
        """The lock is held while it is computed: of two threads that want the same, one waits for the other."""
        with self._lock:
            if number not in self._found:
                self._found[number] = compute(number)
                while len(self._found) > self._most:
                    self._found.popitem(last=False)
            return self._found[number]
