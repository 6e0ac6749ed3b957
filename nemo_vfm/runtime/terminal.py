"""Prints the output of a verb: styled and as wide as the terminal, plain text in a pipe."""

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from nemo_vfm.core.log import scrub

if TYPE_CHECKING:
    from rich.console import Console

NARROW = 16  # columns; a last cell with less is put below
WIDEST = 110  # longer lines of prose are hard to read on any screen


class Terminal:
    """Standard output, asked anew by each verb since tests and pipes exchange it."""

    @cached_property
    def width(self) -> int:
        """Columns; 100 where nobody says (a pipe), so that what is pasted elsewhere looks the same everywhere."""
        return shutil.get_terminal_size((100, 40)).columns

    @cached_property
    def console(self) -> "Console":
        """For tables. NO_COLOR switches bold and colours off; so does a pipe."""
        from rich.console import Console

        system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        return Console(file=sys.stdout, width=self.width, color_system=system, highlight=False, markup=False,
                       emoji=False)  # fmt: skip

    def line(self, text: str = "", style: str = "") -> None:
        """One line, never wrapped: what a user may paste."""
        text = scrub(text)
        if style and sys.stdout.isatty():
            self.console.out(text, style=style, highlight=False)
        else:
            sys.stdout.write(f"{text}\n")

    def table(self, rows: Sequence[tuple[str, ...]], styles: Mapping[str, str]) -> None:
        """Columns, the last one wrapped between words, or below its row where there is no room beside the others.

        A first cell that is a word of `styles` looks like that.

        A row of one cell is a heading in the margin, and as wide as it likes.
        """
        columns = list(zip(*(row for row in rows if len(row) > 1), strict=True))
        widths = [max(map(len, column)) for column in columns[:-1]]
        room = self.width - sum(width + 2 for width in widths)
        for lone, grouped in groupby(rows, key=lambda row: len(row) == 1):
            group = list(grouped)
            last_cells = [row[-1] for row in group]
            longest_word = max((len(word) for cell in last_cells for word in cell.split()), default=0)
            if lone:
                for heading in last_cells:
                    self.line(heading, "bold")
            elif room >= max(longest_word, min(NARROW, max(map(len, last_cells)))):
                self._draw(group, widths, styles)
            else:
                for *others, last in group:
                    self._draw([tuple(others)], widths, styles)
                    self.prose(last, 4)

    def _draw(self, rows: Sequence[tuple[str, ...]], widths: Sequence[int], styles: Mapping[str, str]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for width in widths:
            table.add_column(no_wrap=True, min_width=width)
        for first, *others in (map(scrub, row) for row in rows):
            table.add_row(Text(first, style=styles.get(first.strip(), "")), *map(Text, others))
        with self.console.capture() as drawn:
            self.console.print(table)
        # Cells are filled up with spaces, which nobody wants to paste.
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))

    def result(self, text: str) -> None:
        """A sentence: wrapped on a terminal, and one line for a program that reads lines."""
        for line in text.split("\n"):
            (self.prose if sys.stdout.isatty() else self.line)(line)

    def prose(self, text: str, indent: int = 0) -> None:
        """A paragraph, wrapped to the terminal."""
        for line in wrap(text, min(self.width, WIDEST), indent):
            self.line(line)


def wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of at most `width` columns; a word that is longer stays whole."""
    space = " " * indent
    return textwrap.wrap(text, max(width, indent + 20), initial_indent=space, subsequent_indent=space,
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip
