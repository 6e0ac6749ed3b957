"""Reads the comment at the top of a recipe: what it does, needs, takes and produces."""

import re
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.core.sanitize import printable
from nemo_vfm.core.storage.files import opened

_MOST_BYTES = 64 << 10
_FIELD = re.compile(r"\b(Hardware|Time|Expected|Extras):\s*")
#: A sentence ends where another begins: `0.5 s`, `clips.yaml` and `aesthetic.*` hold none.
_SENTENCE = re.compile(r".*?[.?!](?=\s+[A-Z0-9`(]|$)")


@dataclass(frozen=True, slots=True)
class Header:
    """What the comment that begins a recipe tells, a sentence each; empty where it does not say.

    Args:
        title: what the recipe does.
        hardware: what it needs.
        time: how long it takes there.
        expected: what comes of it.
        extras: of ours that its components need, such as `text`.
    """

    title: str
    hardware: str
    time: str
    expected: str
    extras: tuple[str, ...] = ()


def header(file: Path) -> Header:
    """The comment block that begins a recipe; its licence and its commands are passed over."""
    try:
        with opened(file) as data:  # a page of comments is far shorter
            text = data.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        return Header(f"It cannot be read: {error.strerror}.", "", "", "")
    paragraph = _prose([line.lstrip("#").strip() for line in text[: _length(text)] if "SPDX-" not in line])
    title, *rest = _FIELD.split(paragraph)
    fields = {
        name: _first_sentence(sentence).removesuffix(".") for name, sentence in zip(rest[::2], rest[1::2], strict=True)
    }
    extras = tuple(re.findall(r"\w+", fields.get("Extras", "")))
    return Header(_first_sentence(title), fields.get("Hardware", ""), fields.get("Time", ""),
                  fields.get("Expected", ""), extras)  # fmt: skip


def _prose(lines: list[str]) -> str:
    """The lines in one, without commands: those may go on behind a backslash."""
    prose, command = [], False
    for line in lines:
        command = line.startswith(("nemo-vfm ", "... ")) or command
        prose += [] if command else [line]
        command = command and line.endswith("\\")
    return printable(" ".join(" ".join(prose).split()), _MOST_BYTES)


def _first_sentence(text: str) -> str:
    found = _SENTENCE.match(text.strip())
    return found[0] if found else text.strip()


def _length(lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines) if line and not line.startswith("#")), len(lines))
