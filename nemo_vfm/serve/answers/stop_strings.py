"""Ends a growing text before the first of some strings, and holds back what may become one."""

from collections.abc import Sequence


class StopStrings:
    """A text that comes in pieces.

    Args:
        stops: strings that end it, none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._waiting = ""

    def add(self, piece: str) -> tuple[str, bool]:
        """(text that is certain now, whether a stop string ended it)."""
        text = self._waiting + piece
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self._waiting = ""
            return text[: min(places)], True
        kept = self._unsure(text)
        self._waiting = text[len(text) - kept :]
        return text[: len(text) - kept], False

    def rest(self) -> str:
        """What waited for more, at the end."""
        return self._waiting

    def _unsure(self, text: str) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        longest = min(len(text), max(map(len, self._stops), default=0))
        return next((n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
