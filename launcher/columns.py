"""Formats rows of text, spans and numbers for a terminal, without anything that could move its cursor."""

import sys
from collections.abc import Iterable, Sequence

from nemo_vfm.core.log import scrub


def say(text: str = "") -> None:
    """A line on standard output."""
    sys.stdout.write(f"{scrub(text)}\n")


def table(rows: Iterable[Sequence[str]], indent: int = 0) -> None:
    """Columns as wide as they need; the last one runs on, so that lines can be pasted."""
    cells = [[scrub(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in cells), strict=True)]
    for *others, last in cells:
        padded = [cell.ljust(width) for cell, width in zip(others, widths, strict=True)]
        sys.stdout.write(f"{' ' * indent}{'  '.join([*padded, last])}".rstrip() + "\n")


def names_first(rows: Sequence[Sequence[str]], width: int) -> None:
    """A table whose names, which may be pasted and are not cut, stand above their rows where it is too wide."""
    room = sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True)) - 2
    if room <= width:
        table(rows)
        return
    rest = [[scrub(cell) for cell in row[1:]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rest, strict=True)]
    for (name, *_), others in zip(rows, rest, strict=True):
        say(name)
        say(f"  {'  '.join(cell.ljust(wide) for cell, wide in zip(others, widths, strict=True))}".rstrip())


def pluralise(number: int, what: str) -> str:
    """`1 node`, `1,200 nodes`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def in_words(seconds: int) -> str:
    """Whole minutes in full: `1 day 2 hours`, `90 minutes` as `1 hour 30 minutes`."""
    units = {"day": seconds // 86_400, "hour": seconds // 3600 % 24, "minute": seconds // 60 % 60}
    return " ".join(pluralise(number, unit) for unit, number in units.items() if number)


def span(seconds: float) -> str:
    """A time that people can read."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 100:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h" if minutes < 48 * 60 else f"{minutes / 1440:.1f} days"
