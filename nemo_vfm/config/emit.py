"""Writes a tree as YAML that reads back as the same values; optionally with each value's place as a comment."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress

from nemo_vfm.config.recipe_errors import UNSEEN, Mark, RecipeError, SourceText, printable
from nemo_vfm.config.tree import Map, Node, Plain, Scalar, Seq
from nemo_vfm.config.yaml_source import plain_value

_UNQUOTED = re.compile(r"[A-Za-z0-9_/.$~](?:[\w./${}:=+@%^~()-]| (?=[\w./$(]))*", re.ASCII)
_WIDE, _LEAST = 80, 40  # columns: where places stand at the latest, and what values need to have them beside
NOWHERE = Mark(SourceText("", (), is_file=False))


def to_yaml(root: Map) -> str:
    """Block style, two spaces a level, a list of values on one line; `workflow.py` relies on the indentation."""
    return "".join(f"{line}\n" for line, _ in _lines(root, 0))


def with_places(root: Map, width: int | None = None) -> str:
    """The same with each value's place as a comment: all in one column, or all below where a terminal has no room.

    A line that reaches beyond the column has its place in the column of the next line.
    """
    lines = list(_lines(root, 0))
    room = _WIDE if width is None else width - max((len(origin) for _, origin in lines), default=0) - 4
    has_room = room >= min(_LEAST, max((len(line) for line, _ in lines), default=0))
    column = max((len(line) for line, _ in lines if len(line) <= room), default=0)
    shown = []
    for line, origin in lines:
        place = column if has_room else len(line) - len(line.lstrip())
        if not origin:
            shown.append(line)
        elif has_room and len(line) <= column:
            shown.append(f"{line:<{column}}  # {origin}")
        else:
            shown += [line, f"{' ' * place}  # {origin}"]
    return "".join(f"{line}\n" for line in shown)


def text_of(value: Plain, *, in_list: bool = False) -> str:
    """A single value as YAML."""
    if not isinstance(value, str):
        return json.dumps(value, allow_nan=False)
    reads_back = _UNQUOTED.fullmatch(value) and ": " not in value and not value.endswith(":") and value != "..."
    if reads_back and not (in_list and re.search(r"[\[\]{},]", value)):
        with suppress(RecipeError):
            if plain_value(value, NOWHERE) == value:
                return value
    quoted = json.dumps(value, ensure_ascii=False)
    return UNSEEN.sub(lambda match: f"\\U{ord(match[0]):08x}", quoted)


def flow(node: Node, *, in_list: bool = False) -> str:
    """A tree in one line, as a change on the command line has it."""
    if isinstance(node, Map):
        pairs = (f"{text_of(key, in_list=True)}: {flow(below, in_list=True)}" for key, below in node.items.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(node, Seq):
        return f"[{', '.join(flow(item, in_list=True) for item in node.items)}]"
    return text_of(node.value, in_list=in_list)


def _lines(node: Map | Seq, depth: int) -> Iterator[tuple[str, str]]:
    """The lines of what a node holds, each with the place it came from."""
    indent = "  " * depth
    if isinstance(node, Map):
        pairs = [(f"{indent}{text_of(key, in_list=True)}:", below) for key, below in node.items.items()]
    else:
        pairs = [(f"{indent}-", below) for below in node.items]
    for head, below in pairs:
        is_map = isinstance(below, Map) and bool(below.items)
        is_nested = isinstance(below, Seq) and not all(isinstance(one, Scalar) for one in below.items)
        if isinstance(below, Scalar) or not (is_map or is_nested):
            via = f" {printable(below.via, 100)}" if isinstance(below, Scalar) and below.via else ""
            yield f"{head} {flow(below)}", below.mark.place() + via
        elif is_map and isinstance(node, Seq):  # it begins on the line of its dash
            (first, origin), *rest = _lines(below, depth + 1)
            yield f"{head} {first.lstrip()}", origin
            yield from rest
        else:
            yield head, ""
            yield from _lines(below, depth + 1)
