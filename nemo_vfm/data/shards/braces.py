"""Expands the braces in a name: `shard-{000..127}.tar`, `{train,more}/x.tar`."""

import re

MAX_NAMES = 1_000_000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")


def expanded(text: str) -> list[str]:
    """All names, in order; the text itself where it has no braces. A range keeps the zeros that its start has.

    Raises:
        ValueError: the braces do not close, hold neither a rising range nor a list, or stand for too many names.
    """
    names, position = [""], 0
    for found in _BRACES.finditer(text):
        parts, between = _parts(found[1]), text[position : found.start()]
        if len(names) * len(parts) > MAX_NAMES:
            raise ValueError(f"{text} expands to more than {MAX_NAMES:,} names")
        names = [name + between + part for name in names for part in parts]
        position = found.end()
    names = [name + text[position:] for name in names]
    if "{" in names[0] or "}" in names[0]:
        raise ValueError(f"the braces of {text} are not closed; write shard-{{000000..000127}}.tar")
    return names


def _parts(inside: str) -> list[str]:
    if found := _RANGE.fullmatch(inside):
        first, last = int(found[1]), int(found[2])
        if last < first or last - first >= MAX_NAMES:
            raise ValueError(f"{{{inside}}} is not an increasing range of at most {MAX_NAMES:,} numbers")
        return [str(number).zfill(len(found[1])) for number in range(first, last + 1)]
    if "," in inside:
        return inside.split(",")
    raise ValueError(f"{{{inside}}} is neither a range such as {{000..127}} nor a list such as {{a,b}}")
