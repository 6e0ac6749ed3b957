"""Represents a recipe as a tree in which every value keeps its file and line. Trees are never changed in place."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nemo_vfm.config.recipe_errors import Mark

Plain: TypeAlias = bool | int | float | str | None
TARGET = "_target_"
MISSING = "???"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value."""

    value: Plain  #: as written, or as interpolated
    mark: Mark  #: where it is written
    via: str = ""  #: the interpolation it came through, as text
    secret: bool = False  #: True where it came from the environment: it is never shown
    broken: bool = False  #: True where a problem has been reported already, so that no second one follows from it
    #: (text, who gave it) of a text that was put together: `recipe`, `user` for the command line, or `env:NAME`. Empty
    #: where it is as written.
    pieces: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    #: the letters of it, where it stands without quotes in YAML: of 1_000 the value is 1000
    written: str = field(default="", repr=False, compare=False)

    def origins(self) -> tuple[tuple[str, str], ...]:
        """Its pieces, also where it is as written."""
        return self.pieces or ((str(self.value), "user" if self.mark.source.is_typed else "recipe"),)

    @property
    def is_typed(self) -> bool:
        """Whether the user gave all of it on the command line, also where it came through `${...}`.

        What stands at another address was typed for that place: what grants something asks `is_typed_here`.
        """
        given = {origin for _, origin in self.origins()}
        return given == {"user"} or (self.mark.source.is_typed and "recipe" not in given)

    @property
    def is_typed_here(self) -> bool:
        """Whether the user gave all of it on the command line, at this very address."""
        return self.is_typed and self.mark.source.is_typed


@dataclass(frozen=True, slots=True)
class Seq:
    """A list."""

    items: "tuple[Node, ...]"
    mark: Mark


@dataclass(frozen=True, slots=True)
class Map:
    """A mapping."""

    items: "dict[str, Node]"  #: its values, in order
    mark: Mark  #: where it begins
    keys: dict[str, Mark] = field(default_factory=dict)  #: where each key is written
    made: bool = False  #: True where it only leads to an ingredient under a dotted slot: then its order means nothing
    #: in a resolved tree, the address where it is written: the same at each place that refers to it
    home: str = field(default="", repr=False, compare=False)

    def target(self) -> str | None:
        """The text of `_target_`, if there is one."""
        node = self.items.get(TARGET)
        return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None

    def key_mark(self, key: str) -> Mark:
        """Where `key` is written."""
        return self.keys.get(key, self.mark)

    def with_item(self, key: str, node: "Node", mark: Mark) -> "Map":
        """A copy with `key` set; an existing key keeps its position."""
        return replace(self, items={**self.items, key: node}, keys={**self.keys, key: mark})

    def without(self, *names: str) -> "Map":
        """A copy that lacks `names`."""
        return replace(self, items={k: v for k, v in self.items.items() if k not in names})


Node: TypeAlias = Scalar | Seq | Map


def join(*parts: str) -> str:
    """A dotted address from its parts; empty parts vanish."""
    return ".".join(part for part in parts if part)


def find(root: Node, path: str) -> Node | None:
    """The node at a dotted address, or None."""
    node: Node | None = root
    for part in path.split(".") if path else ():
        node = child(node, part) if node is not None else None
    return node


def child(node: Node, part: str) -> Node | None:
    """One step down: a key of a mapping or an index of a list."""
    if isinstance(node, Map):
        return node.items.get(part)
    if isinstance(node, Seq) and part.isdecimal() and int(part[:9]) < len(node.items):
        return node.items[int(part[:9])]
    return None


def mark_at(node: Node | None, mark: Mark, address: Iterable[str]) -> Mark:
    """Where the value at an address below a node is written: as near to it as the recipe has lines."""
    below = node
    for key in address:
        above, below = below, child(below, key) if below is not None else None
        if below is None:
            break
        mark = above.key_mark(key) if isinstance(above, Map) else below.mark
    return mark


def nest(path: str, node: Node, mark: Mark) -> Map:
    """A tree that holds only `node`, at a dotted address."""
    for part in reversed(path.split(".")):
        node = Map({part: node}, mark, {part: mark}, made=True)
    assert isinstance(node, Map)
    return node


def merge(below: Node, above: Node) -> Node:
    """`above` laid over `below`: mappings merge, lists and scalars replace.

    Two mappings with different `_target_` do not merge, the later replaces the earlier, so that the arguments of one
    class never reach another.
    """
    if not (isinstance(below, Map) and isinstance(above, Map)):
        return above
    if below.target() and above.target() and below.target() != above.target():
        return above
    items = {key: merge(below.items[key], node) if key in below.items else node for key, node in above.items.items()}
    # The order of the steps of a workflow counts: that of the lower file, unless it only leads to an ingredient.
    items = items | {k: v for k, v in below.items.items() if k not in items} if below.made else below.items | items
    mark = below.mark if below.target() and not above.target() else above.mark
    return Map(items, mark, below.keys | above.keys, made=below.made and above.made)


def put(root: Map, path: str, node: Node, mark: Mark) -> Map:
    """A copy of `root` in which the node at `path` is replaced, whatever it was."""
    head, _, rest = path.partition(".")
    if not rest:
        return root.with_item(head, node, mark)
    below = root.items.get(head)
    if not isinstance(below, Map):
        return root.with_item(head, nest(rest, node, mark), mark)
    return root.with_item(head, put(below, rest, node, mark), root.keys.get(head, mark))


def drop(root: Map, path: str) -> Map:
    """A copy of `root` without the node at `path`, which must exist."""
    head, _, rest = path.partition(".")
    if not rest:
        return root.without(head)
    below = root.items[head]
    assert isinstance(below, Map)
    return root.with_item(head, drop(below, rest), root.key_mark(head))


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every node with its address, parents first."""
    yield path, node
    if isinstance(node, Map):
        for key, below in node.items.items():
            yield from walk(below, join(path, key))
    elif isinstance(node, Seq):
        for index, below in enumerate(node.items):
            yield from walk(below, join(path, str(index)))


def map_scalars(node: Node, change: Callable[[Scalar], Node], key: Callable[[str], str] = str) -> Node:
    """The same tree with each single value, and each key, as these functions give it."""
    if isinstance(node, Map):
        return replace(node, items={key(name): map_scalars(below, change, key) for name, below in node.items.items()})
    if isinstance(node, Seq):
        return replace(node, items=tuple(map_scalars(below, change, key) for below in node.items))
    return change(node)


def to_plain(node: Node) -> object:
    """The tree as ordinary dictionaries, lists and values, without places."""
    if isinstance(node, Map):
        return {key: to_plain(below) for key, below in node.items.items()}
    if isinstance(node, Seq):
        return [to_plain(below) for below in node.items]
    return node.value
