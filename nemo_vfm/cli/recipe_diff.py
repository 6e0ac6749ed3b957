"""Lists the keys in which two composed trees differ, in the order of the recipes, each value with its place."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nemo_vfm.config.emit import text_of
from nemo_vfm.config.tree import Map, Node, Scalar, Seq, join

_ALIGNED = 48  # a longer value is not aligned with the others
_IGNORED = ("run_dir",)  # where a run lies is no part of what it is


@dataclass(frozen=True, slots=True)
class Difference:
    """One key; a side that lacks it is None."""

    key: str
    old: Node | None
    new: Node | None


def differing(old: Map, new: Map) -> list[Difference]:
    """The differences; a list counts as one value where it holds plain values only."""
    left, right = dict(_leaves(old)), dict(_leaves(new))
    pairs = (Difference(key, left.get(key), right.get(key)) for key in _in_order(list(left), list(right)))
    return [pair for pair in pairs if _text(pair.old) != _text(pair.new) and pair.key not in _IGNORED]


def side_lines(differences: list[Difference]) -> Iterator[tuple[str, str]]:
    """(mark, line) for each line to print; the mark is ' ', '-' or '+'."""
    texts = [_text(node) for pair in differences for node in (pair.old, pair.new)]
    width = max((len(text) for text in texts if len(text) <= _ALIGNED), default=0)
    for pair in differences:
        yield " ", pair.key
        for mark, node in (("-", pair.old), ("+", pair.new)):
            if node is not None:
                yield mark, f"  {mark} {_text(node):<{width}}  # {node.mark.place()}{_via(node)}"


def _in_order(old: list[str], new: list[str]) -> list[str]:
    """All keys: the old ones in their order, a new one behind what stands before it in the new recipe."""
    known, merged = set(old), list(old)
    for before, key in zip(["", *new], new, strict=False):
        if key not in known:
            merged.insert(merged.index(before) + 1 if before in merged else 0, key)
    return merged


def _leaves(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    below: Mapping[str, Node] = {}
    if isinstance(node, Map):
        below = node.items
    elif isinstance(node, Seq) and not all(isinstance(item, Scalar) for item in node.items):
        below = {str(index): item for index, item in enumerate(node.items)}
    if not below:
        yield path, node
    for key, value in below.items():
        yield from _leaves(value, join(path, key))


def _text(node: Node | None) -> str:
    if node is None:
        return ""
    if isinstance(node, Seq):
        return f"[{', '.join(map(_text, node.items))}]"
    return text_of(node.value) if isinstance(node, Scalar) else "{}"


def _via(node: Node) -> str:
    return f" {node.via}" if isinstance(node, Scalar) and node.via not in ("", node.value) else ""
