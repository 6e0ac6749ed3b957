"""Draws words, questions and sentences that follow from a text, for answers in the forms that prompts ask for."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from nemo_vfm.core.types.json_value import Json

_THINGS = ("rivers", "bridges", "clocks", "markets", "forests", "radios", "gardens", "maps", "engines", "harbours",
           "libraries", "glaciers", "kites", "looms", "orchards", "telescopes")  # fmt: skip
_KINDS = ("old", "small", "quiet", "northern", "wooden", "modern", "shared", "hidden", "public", "early", "distant",
          "common", "floating", "paper", "coastal", "winter")  # fmt: skip
_DEEDS = ("change", "shape", "support", "limit", "explain", "outlast", "follow", "need")


@dataclass(slots=True)
class WordDraw:
    """Choices that follow from a text: the same text, the same choices in the same order."""

    _text: str
    _count: int = 0

    def number(self, below: int) -> int:
        """From 0."""
        self._count += 1
        return int.from_bytes(sha256(f"{self._count} {self._text}".encode()).digest()[:6], "big") % below

    def share(self) -> float:
        """From 0 to 1."""
        return self.number(2**48) / 2**48

    def thing(self) -> str:
        """Two words."""
        return f"{_KINDS[self.number(len(_KINDS))]} {_THINGS[self.number(len(_THINGS))]}"

    def deed(self) -> str:
        """A verb."""
        return _DEEDS[self.number(len(_DEEDS))]

    def question(self) -> str:
        """One line."""
        return f"How do {self.thing()} {self.deed()} {self.thing()}?"

    def sentence(self) -> str:
        """With a year."""
        return f"{self.thing().capitalize()} {self.deed()} {self.thing()} in {1800 + self.number(200)}."


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A form that a prompt asks for."""

    pattern: re.Pattern[str]  #: words by which our prompts ask for it
    #: Makes an answer from the match, all messages, and a draw; None where they ask for another form after all.
    answer: Callable[[re.Match[str], Sequence[Json], WordDraw], str | None]


def numbered_list(found: re.Match[str], make: Callable[[], str]) -> str:
    """A numbered list of as many items as the first group of a match says."""
    return "\n".join(f"{number}. {make()}" for number in range(1, int(found[1]) + 1))
