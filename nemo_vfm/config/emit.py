"""Writes a tree as YAML that reads back as the same values; optionally with each value's place as a comment."""

import json
import re
from collections.abc import Iterator

from nemo_vfm.config.recipe_errors import UNSEEN, Mark, RecipeError, Source, printable
from nemo_vfm.config.tree import Map, Node, Plain, Scalar, Seq
from nemo_vfm.config.yaml_source import plain_value

_UNQUOTED = re.compile(r"[A-Za-z0-9_/.$~](?:[\w./${}:=+@%^~()-]| (?=[\w./$(]))*", re.ASCII)
_WIDE, _LEAST = 80, 40  # columns: where places stand at the latest, and what values need to have them beside
NOWHERE = Mark(Source("", (), is_file=False))


def to_yaml(root: Map) -> str:
    """Block style, two spaces a level, a list of values on one line; `workflow.py` relies on the indentation."""
    return "".join(f"{line}\n" for line, _ in _map(root, 0))


def with_places(root: Map, width: int | None = None) -> str:
    """The same with each value's place as a comment: all in one column, or all below where that has no room.

    A line that reaches beyond the column has its place in the column of the next line.

    Args:
        width: columns of the terminal; None is as many as it takes.
    """
    lines = list(_map(root, 0))
    room = _WIDE if width is None else width - max((len(origin) for _, origin in lines), default=0) - 4
    if room < min(_LEAST, max((len(line) for line, _ in lines), default=0)):
        return "".join(f"{line}\n{_below(line, origin)}" for line, origin in lines)
    column = max((len(line) for line, _ in lines if len(line) <= room), default=0)
    return "".join(f"{_beside(line, origin, column)}\n" for line, origin in lines)


def _beside(line: str, origin: str, column: int) -> str:
    if not origin:
        return line
    gap = "" if len(line) <= column else f"\n{' ' * column}"
    return f"{line}{gap}  # {origin}" if gap else f"{line:<{column}}  # {origin}"


def _below(line: str, origin: str) -> str:
    indent = len(line) - len(line.lstrip())
    return f"{' ' * indent}  # {origin}\n" if origin else ""


def text_of(value: Plain, *, in_list: bool = False) -> str:
    """A single value as YAML."""
    if not isinstance(value, str):
        return json.dumps(value, allow_nan=False)
    if _reads_back(value) and not (in_list and re.search(r"[\[\]{},]", value)):
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


def _reads_back(text: str) -> bool:
    if not _UNQUOTED.fullmatch(text) or ": " in text or text.endswith(":") or text == "...":
        return False
    try:
        return plain_value(text, NOWHERE) == text and isinstance(plain_value(text, NOWHERE), str)
    except RecipeError:
        return False


def _map(node: Map, depth: int) -> Iterator[tuple[str, str]]:
    for key, below in node.items.items():
        yield from _entry(f"{'  ' * depth}{text_of(key, in_list=True)}:", below, depth)


def _entry(head: str, node: Node, depth: int) -> Iterator[tuple[str, str]]:
    """The lines of one value behind `head`, each with the place it came from."""
    if isinstance(node, Map) and node.items:
        yield head, ""
        yield from _map(node, depth + 1)
    elif isinstance(node, Seq) and any(not isinstance(item, Scalar) for item in node.items):
        yield head, ""
        for item in node.items:
            yield from _item(item, depth + 1)
    else:
        yield f"{head} {flow(node)}", _origin(node)


def _item(node: Node, depth: int) -> Iterator[tuple[str, str]]:
    """One element of a list that is not flat; a mapping begins on the line of its dash."""
    indent = "  " * depth
    if isinstance(node, Map) and node.items:
        lines = _map(node, depth + 1)
        first, origin = next(lines)
        yield f"{indent}- {first.lstrip()}", origin
        yield from lines
    elif isinstance(node, Seq) and any(not isinstance(item, Scalar) for item in node.items):
        yield f"{indent}-", ""
        for item in node.items:
            yield from _item(item, depth + 1)
    else:
        yield f"{indent}- {flow(node)}", _origin(node)


def _origin(node: Node) -> str:
    via = f" {printable(node.via, 100)}" if isinstance(node, Scalar) and node.via else ""
    return node.mark.place() + via
