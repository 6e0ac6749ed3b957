"""Reads the summary and the argument texts of a docstring, in Google's style or torch's."""

import inspect
import re
from collections.abc import Iterator

from nemo_vfm.config.locate import Target

_SECTION = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*))?")


def summary(target: Target) -> str:
    """The first paragraph, on one line; empty where there is no docstring."""
    if inspect.isclass(target) and not vars(target).get("__doc__"):  # an inherited one speaks of another class
        return ""
    first = (inspect.getdoc(target) or "").split("\n\n")[0]
    return " ".join(first.split())


def argument_texts(target: Target) -> dict[str, str]:
    """`{argument: what the docstring says}`, of the class and of its constructor."""
    docs = [inspect.getdoc(target)]
    if inspect.isclass(target):
        docs.append(inspect.getdoc(target.__init__))
    return {name: text for doc in docs if doc for name, text in _arguments(doc.splitlines())}


def _arguments(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The entries of the section; a line that is indented further goes on with the entry above."""
    starts = [number for number, line in enumerate(lines) if _SECTION.fullmatch(line)]
    body = lines[starts[0] + 1 :] if starts else []
    depth = _depth(next((line for line in body if line.strip()), ""))
    name, text = "", ""
    for line in body:
        if line.strip() and _depth(line) < max(depth, 1):
            break
        entry = _ENTRY.fullmatch(line.strip()) if _depth(line) == depth else None
        if entry:
            if name:
                yield name, text
            name, text = entry[1], entry[2] or ""
        elif line.strip():
            text = f"{text} {line.strip()}".strip()
    if name:
        yield name, text


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
