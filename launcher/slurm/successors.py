"""Reads which jobs continue the work of which others, where a job was resubmitted by its own script."""

import re
from collections.abc import Mapping, Sequence

_LINE = re.compile(r"([0-9]+)(?:_[0-9]+)?\t([0-9]+)(?:_[0-9]+)?")


def successors(lines: Sequence[str]) -> dict[str, list[str]]:
    """Number -> the numbers that go on with its work, without those of tasks; half a line is passed over."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if match := _LINE.fullmatch(line):
            found.setdefault(match[1], []).append(match[2])
    return found


def line_of(number: str, known: Mapping[str, Sequence[str]]) -> list[str]:
    """A number and all that went on with its work, the latest last."""
    found, seen = [number], {number}
    for one in found:  # it grows meanwhile
        more = [later for later in known.get(one, ()) if later not in seen]
        found += dict.fromkeys(more)
        seen.update(more)
    return found
