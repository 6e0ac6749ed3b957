"""Shows what became of a migrated file's keys in three tables: carried, changed, not carried with the reasons."""

import textwrap
from collections.abc import Iterator, Sequence

from nemo_vfm.cli.migrate import Entry, Migration
from nemo_vfm.cli.migrate.formats import UNKNOWN
from nemo_vfm.cli.migrate.recipe_text import by_reason, shown, shown_line, shown_value

_MOST = 20  # keys that are told of one reason


def account(migrated: Migration, width: int) -> Iterator[tuple[str, str]]:
    """(line, style) of what differs, then of all three tables; an empty style is plain."""
    if migrated.draft.differences:
        yield "", ""
        yield "Another training than the original", "bold"
        for one in migrated.draft.differences:
            yield from _wrapped(shown_line(one), 2, width)
    carried, changed, left = (migrated.of(verdict) for verdict in ("carried", "changed", "left"))
    yield from _head("Carried over", carried)
    yield from (("  " + line, "") for line in _columns(carried))
    yield from _head("Changed", changed)
    for entry in changed:
        yield f"  {_sentence(entry)}  ->  {shown_line(entry.fate.where)}", ""
        yield from _wrapped(entry.fate.why, 6, width)
    yield from _head("Not carried over", left)
    for why, entries in by_reason(left).items():
        yield from _wrapped(why, 2, width)
        most = len(entries) if why == UNKNOWN else _MOST
        more = [f"and {len(entries) - most} more, which the recipe names"] * (len(entries) > most)
        # A key and its value stay on one line: the blank between them is no place to break.
        together = ", ".join(_sentence(entry).replace(" ", "\u00a0") for entry in entries[:most])
        together = ", ".join([together, *more])
        yield from ((line.replace("\u00a0", " "), style) for line, style in _wrapped(together, 6, width))


def _head(title: str, entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    if entries:
        yield "", ""
        yield f"{title} ({len(entries)})", "bold"


def _columns(entries: Sequence[Entry]) -> list[str]:
    sentences = [_sentence(entry) for entry in entries]
    width = min(max(map(len, sentences), default=0), 70)
    return [
        f"{text:<{width}}  ->  {shown_line(entry.fate.where)}" for text, entry in zip(sentences, entries, strict=True)
    ]


def _sentence(entry: Entry) -> str:
    return f"{shown(entry.key.path)}: {shown_value(entry.key)}"


def _wrapped(text: str, indent: int, width: int) -> Iterator[tuple[str, str]]:
    space = " " * indent
    lines = textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield from ((line, "") for line in lines)
