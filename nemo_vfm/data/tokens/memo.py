"""Caches the last few values that were computed by number, for threads that ask for them again."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Memo(Generic[T]):
    """What was computed last; another process begins with none."""

    _most: int
    _found: OrderedDict[int, T] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

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
