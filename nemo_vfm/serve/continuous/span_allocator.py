"""Hands out contiguous spans of a fixed number of places, and takes them back.

A text's keys and values lie in one span, so that attention reads them as a view. The price is fragmentation: a long
text may wait although its length is free in pieces.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Places `start` to `start + length` of a room."""

    start: int  #: the first place
    length: int  #: how many places

    @property
    def end(self) -> int:
        """The place after the last."""
        return self.start + self.length


class SpanAllocator:
    """First fit over a sorted list of free spans; neighbours are joined when a span comes back.

    Args:
        places: how many there are.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self._free = [Span(0, places)]

    @property
    def free(self) -> int:
        """Free places, contiguous or not."""
        return sum(span.length for span in self._free)

    def take(self, length: int) -> Span | None:
        """A span of this length, or None while there is none."""
        for index, span in enumerate(self._free):
            if span.length >= length:
                rest = Span(span.start + length, span.length - length)
                self._free[index : index + 1] = [rest] if rest.length else []
                return Span(span.start, length)
        return None

    def give_back(self, span: Span) -> None:
        """Free a span that `take` returned."""
        joined: list[Span] = []
        for one in sorted([*self._free, span], key=lambda one: one.start):
            if joined and joined[-1].end == one.start:
                joined[-1] = Span(joined[-1].start, joined[-1].length + one.length)
            else:
                joined.append(one)
        self._free = joined
