"""Formats the problems of a recipe: file:line:column, the source line and a caret."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.sanitize import UNSEEN, printable
from nemo_vfm.core.secret import conceal
from nemo_vfm.core.storage.files import real_path

_COMMAND_LINE = "command line"
__all__ = ["UNSEEN", "Mark", "Problem", "RecipeError", "SourceText", "did_you_mean", "fail", "printable", "shown_path"]

_WIDTH = 110  # characters of a source line that are shown
_SHOWN = 50  # problems that are shown; a hostile recipe can have thousands
_NAMED = 24
_KNOWN = 300  # names that are searched for the nearest: each takes some microseconds, for every problem
_LONGEST = 600  # characters of a message, and of a name that is worth a suggestion


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text that values are read from."""

    name: str  #: a file's path, or "command line"
    lines: tuple[str, ...] = field(repr=False)  #: the text, line by line
    is_file: bool = True  #: False where a line number would mean nothing to the user
    #: the place in another file that named this one; None for what the user named
    taken_at: "Mark | None" = field(default=None, repr=False, compare=False)

    @classmethod
    def from_word(cls, word: str) -> "SourceText":
        """A word of the command line."""
        return cls(_COMMAND_LINE, (word,), is_file=False)

    def included_from(self) -> list["Mark"]:
        """Which file took this one, which took that, and so on: an ingredient is often wrong for one recipe only."""
        return [] if self.taken_at is None else [self.taken_at, *self.taken_at.source.included_from()]

    @property
    def is_typed(self) -> bool:
        """Whether the user typed it. A file may be called "command line", too."""
        return self.name == _COMMAND_LINE and not self.is_file


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a source; line and column count from 1."""

    source: SourceText
    line: int = 1
    column: int = 1

    def place(self) -> str:
        """The place without its column: what `show` writes behind a value."""
        name = self.source.name
        return f"{printable(shown_path(name), 1000)}:{self.line}" if self.source.is_file else printable(name, 1000)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a recipe."""

    path: str  #: the dotted address of the value, empty for the root
    mark: Mark  #: where it is written
    message: str  #: one sentence: what is wrong, what was expected, what to try
    #: "missing" where the recipe leaves a value to the user (`???`); everything else is an "error"
    kind: Literal["error", "missing"] = "error"

    def render(self) -> str:
        """Place and address, the source line, a caret with the message, which files led there; secrets are masked."""
        place = f"{self.mark.place()}:{self.mark.column}" if self.mark.source.is_file else self.mark.place()
        line, caret, lines_there = "", 0, self.mark.source.lines
        if 1 <= self.mark.line <= len(lines_there):  # without its indentation, cut to a readable width
            raw = lines_there[self.mark.line - 1].replace("\t", " ")
            caret = max(self.mark.column - 1 - (len(raw) - len(raw.lstrip())), 0)
            text = printable(raw.strip(), len(raw))
            offset = max(caret - _WIDTH // 2, 0) if len(text) > _WIDTH else 0
            line, caret = text[offset : offset + _WIDTH], caret - offset
        # A message in one line; where it shows a place inside a text with a caret of its own, these are two more.
        pointed = re.fullmatch(r"(.*)\n( {4}[^\n]{1,200})\n( {4,204}\^)", self.message, re.DOTALL)
        parts = pointed.groups() if pointed else (self.message,)
        message, *within = [printable(part, _LONGEST) for part in parts]
        lines = [f"{place}  {printable(self.path, _WIDTH)}".rstrip()]
        lines += [f"    {line}", f"    {' ' * caret}^ {message}"] if line else [f"    {message}"]
        lines += [f"    {' ' * caret}{inner}" for inner in within]
        places = [mark.place() for mark in self.mark.source.included_from()]
        return conceal("\n".join(lines + ([f"    (included from {', from '.join(places)})"] if places else [])))


class RecipeError(UserError):
    """A recipe cannot be used; the text shows every problem at its place."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        shown = [problem.render() for problem in self.problems[:_SHOWN]]
        more = [f"... and {len(self.problems) - _SHOWN} more"] * (len(self.problems) > _SHOWN)
        super().__init__("\n".join(shown + more))


def fail(message: str, mark: Mark, path: str = "") -> RecipeError:
    """An error with one problem, to be raised."""
    return RecipeError([Problem(path, mark, message)])


def some_of(names: Sequence[str]) -> str:
    """Names in a row; of many the first ones and how many more there are, so that what comes behind is still read."""
    return ", ".join([*names[:_NAMED], *([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else [])])


def did_you_mean(name: str, known: Iterable[str], most: int = _KNOWN) -> str:
    """A suggestion to append to a message, or nothing; `most` is how many names are searched."""
    return "".join(f"; did you mean {near}?" for near in nearest(name, known, most))


def nearest(name: str, known: Iterable[str], most: int = _KNOWN) -> list[str]:
    """The known name that is most like a name, if any is, and there are no more than `most`."""
    if len(name) > _WIDTH:  # nobody's slip of the pen, and the search takes quadratic time
        return []
    names = [*islice(known, most + 1)]
    small = {one.lower(): one for one in names}
    if len(names) > most:
        return []
    return [small[close] for close in difflib.get_close_matches(name.lower(), list(small), n=1, cutoff=0.6)]


def shown_path(name: str) -> str:
    """A path as the user would type it: relative where it lies below the working directory."""
    try:
        return str(real_path(Path(name)).relative_to(Path.cwd()))
    except ValueError:
        return name
