"""Reads the examples of a documentation page: files to write, commands to run, and their expected output."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One section.

    Args:
        files: name -> text, from blocks that name a file.
        commands: (words behind `nemo-vfm`, what it prints), from `console` blocks.
        environment: variables that a command sets in front of itself.
    """

    title: str
    files: dict[str, str]
    commands: list[tuple[list[str], str]]


def examples(page: str) -> list[Example]:
    """The sections of a page that hold a command."""
    parts = _SECTION.split(page)[1:]
    found = [_example(title, text) for title, text in zip(parts[::2], parts[1::2], strict=True)]
    return [example for example in found if example.commands]


def _example(title: str, text: str) -> Example:
    files, commands = {}, []
    for language, name, body in _BLOCK.findall(text):
        if name:
            files[name] = body.replace("<TAB>", "\t")
        elif language == "console":
            for words, answer in re.findall(r"^\$ nemo-vfm (.*)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
                commands.append((shlex.split(words, comments=True), answer))
    return Example(title, files, commands)


def write_files(example: Example, folder: Path) -> None:
    """Put an example's files where its commands look for them."""
    for name, text in example.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
