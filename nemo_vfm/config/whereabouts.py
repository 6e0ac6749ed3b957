# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The last part of a class's name in, the dotted names under which trusted packages define it out; nothing is imported.

People remember a class and forget its module, and between versions modules move.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_MAX_FILES = 3000


def elsewhere(name: str, trust: Sequence[str]) -> str:
    """A suggestion to append to a message, or nothing."""
    last = name.rpartition(".")[2]
    if not last.isidentifier() or not last.isascii() or last.startswith("_"):
        return ""
    found = [place for entry in trust if entry.endswith(".") for place in _definitions(entry.rstrip("."), last)]
    return f"; did you mean {' or '.join(dict.fromkeys(found[:3]))}?" if found else ""


def _definitions(package: str, last: str) -> Iterator[str]:
    """Where the files of a package that is already imported define a public name."""
    pattern = re.compile(rf"^(?:class|def) {last}\b", re.MULTILINE)
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        for file in sorted(Path(folder).rglob("*.py"))[:_MAX_FILES]:
            parts = file.relative_to(folder).with_suffix("").parts
            if not any(part.startswith("_") for part in parts) and pattern.search(file.read_text("utf-8", "replace")):
                yield ".".join((package, *parts, last))
