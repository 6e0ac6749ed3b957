"""Suggests dotted names under which trusted packages define a class, given its last part; nothing is imported.

People remember a class and forget its module, and modules move between versions.
"""

import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_MAX_FILES = 3000
_DEFINITION = re.compile(r"^(?:class|def) ([A-Za-z]\w*)", re.MULTILINE)


def elsewhere(name: str, trust: Sequence[str]) -> str:
    """A suggestion to append to a message, or nothing."""
    last = name.rpartition(".")[2]
    if not last.isidentifier() or not last.isascii() or last.startswith("_"):
        return ""
    found = [place for entry in trust if entry.endswith(".") for place in _index(entry.rstrip(".")).get(last, ())]
    return f"; did you mean {' or '.join(dict.fromkeys(found[:3]))}?" if found else ""


@cache
def _index(package: str) -> dict[str, list[str]]:
    """Each public name that the files of a package define, with where; empty where it has not been imported."""
    found: dict[str, list[str]] = {}
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        for file in sorted(Path(folder).rglob("*.py"))[:_MAX_FILES]:
            parts = file.relative_to(folder).with_suffix("").parts
            if not any(part.startswith("_") for part in parts):
                for name in _DEFINITION.findall(file.read_text("utf-8", "replace")):
                    found.setdefault(name, []).append(".".join((package, *parts, name)))
    return found
