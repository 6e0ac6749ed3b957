"""Parses YAML text into a tree with places: strict, bounded, and without any way to create an object.

Stricter than YAML 1.1: only `true` and `false` are booleans, base 60 and octal do not exist, and `6e-3` and `400_000`
are numbers. Tags, duplicate keys, merge keys, NaN and infinity are refused. PyYAML only gives events; its constructors
and resolvers never run. Bytes, depth, aliases and nodes are limited, so a hostile file ends in one sentence.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from nemo_vfm.config.recipe_errors import UNSEEN, Mark, RecipeError, SourceText, fail, shown_path
from nemo_vfm.config.tree import Map, Node, Plain, Scalar, Seq
from nemo_vfm.core.storage.files import open_regular, real_path

SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_ALIASES = 100
MAX_NODES = 20_000
MAX_DIGITS = 40  # Python reads long integers in quadratic time; nobody writes a number this long on purpose

_INT = re.compile(r"[-+]?(?:0|[1-9]\d*(?:_\d+)*)")
_FLOAT = re.compile(r"[-+]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|nan)", re.IGNORECASE)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml: 20 times faster, same events


def read(path: Path, taken_at: Mark | None = None) -> Map:
    """The mapping that a recipe or ingredient file holds; another file names it at `taken_at`.

    Raises:
        RecipeError: it cannot be read, is too large, or is not the YAML described above.
    """
    return _mapping_of(parse(_text(path, taken_at), str(path), taken_at=taken_at))


def read_foreign(path: Path, taken_at: Mark, keys: Sequence[str]) -> Map:
    """The same for a file that may be anything: what has none of the keys is no recipe, and no word of it is shown.

    A recipe from a stranger may name any file of the user's by `recipe:`, or bring a link to it.
    """
    name = shown_path(str(path))
    if real_path(path).suffix not in SUFFIXES:
        raise fail(f"{name} is not a recipe: the file name must end in {' or '.join(SUFFIXES)}", taken_at)
    text = _text(path, taken_at)
    try:
        found = _mapping_of(parse(text, str(path), taken_at=taken_at))
    except RecipeError as error:
        line = error.problems[0].mark.line
        raise fail(f"{name} has an error on line {line}; run `nemo-vfm check {name}` to see it",
                   taken_at) from None  # fmt: skip
    if not found.items.keys() & set(keys):
        raise fail(f"{name} is not a recipe: it has no {' or '.join(keys)}", taken_at)
    return found


def _text(path: Path, taken_at: Mark | None) -> str:
    nowhere = Mark(SourceText(str(path), (), taken_at=taken_at))
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise fail(f"cannot read {shown_path(str(path))}: {error.strerror}", nowhere) from error
    if len(data) > MAX_BYTES:
        raise fail(f"this file is too large: a recipe has at most {MAX_BYTES} bytes", nowhere)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fail(f"a recipe must be UTF-8 text; byte {error.start} is not", nowhere) from error


def _mapping_of(node: Node) -> Map:
    if not isinstance(node, Map):
        # Spaces that were copied from a web page look like others, and YAML does not take them as such.
        line = "".join(node.mark.source.lines[node.mark.line - 1 : node.mark.line])
        why = "; it contains a no-break space (U+00A0); retype it as a plain space" if "\xa0" in line else ""
        raise fail(f"a recipe file must be a mapping (lines of `key: value`){why}", node.mark)
    return node


def parse(text: str, name: str, *, is_file: bool = True, taken_at: Mark | None = None) -> Node:
    """Read one YAML document."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    source = SourceText(name, tuple(text.split("\n")), is_file, taken_at)
    if unseen := UNSEEN.search(text):
        line = text.count("\n", 0, unseen.start())
        column = unseen.start() - (text.rfind("\n", 0, unseen.start()) + 1)
        raise fail(f"the invisible character U+{ord(unseen[0]):04X} is not allowed here; delete it",
                   Mark(source, line + 1, column + 1))  # fmt: skip
    try:
        return _NodeReader(text, source).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        said = getattr(error, "problem", None) or str(error).splitlines()[0]
        where = Mark(source, mark.line + 1, mark.column + 1) if mark else Mark(source)
        rest = source.lines[mark.line :] if mark else ("x",)
        if not any(line.strip() for line in rest):  # the text ended too early: point at its end
            last = max((i for i, line in enumerate(source.lines) if line.strip()), default=0)
            where = Mark(source, last + 1, len(source.lines[last]) + 1)
        if "mapping values are not allowed" in said:
            said += " (quote a text that contains ': ')"
        if "\\t" in said or "cannot start any token" in said:
            said += " (indent with spaces; quote a text that begins with a special character)"
        if "???" in "".join(source.lines[where.line - 1 : where.line]):
            said += " (inside { } and [ ], write '???' in quotes)"
        if not source.is_file and "did not find expected" in said:
            said += " (in a shell, quote a change that contains spaces: 'a=[one two, three]')"
        shown = shown_path(source.name) if source.is_file else source.name
        raise fail(f"{shown} is not valid YAML here: {said}", where) from error


def plain_value(text: str, mark: Mark) -> Plain:
    """What an unquoted text means: null, true, false, a number, or itself."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _NOT_FINITE.fullmatch(text):
        raise fail(f"{text} is not a finite number; recipes hold finite numbers only", mark)
    if not _FLOAT.fullmatch(text):
        return text
    if len(text) > MAX_DIGITS:
        raise fail(f"this number is {len(text)} characters long; write at most {MAX_DIGITS}, or quote it", mark)
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if re.fullmatch(r"[-+]?[\d_]+", text):
        number = text.lstrip("+-0") or "0"
        raise fail(f"{text} begins with a zero: write {number} for a number, '{text}' for text", mark)
    value = float(text.replace("_", ""))
    if not math.isfinite(value):
        raise fail(f"{text} is too large for a 64-bit float; recipes hold finite numbers only", mark)
    if value == 0 and re.search("[1-9]", text.lower().partition("e")[0]):
        raise fail(f"{text} rounds to 0 as a 64-bit float; write 0 if you mean that", mark)
    return value


class _NodeReader:
    """Turns parser events into nodes; it recurses at most MAX_DEPTH deep."""

    def __init__(self, text: str, source: SourceText) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._source = source
        self._anchors: dict[str, tuple[Node, int, int]] = {}  # with how many nodes it is and how far down it goes
        self._deepest = 0
        self._aliases = 0
        self._nodes = 0

    def document(self) -> Node:
        """The one document of the text."""
        next(self._events)  # the start of the stream
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            raise fail("this file is empty", Mark(self._source))
        node = self._node(next(self._events), 0)
        next(self._events)  # the end of the document
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise fail("a recipe must be one YAML document; a second one begins here", self._mark(event))
        return node

    def _mark(self, event: Any) -> Mark:
        return Mark(self._source, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, depth: int) -> Node:
        mark = self._mark(event)
        if isinstance(event, yaml.AliasEvent):
            name = str(event.anchor)
            if name not in self._anchors:
                raise fail(f"*{name} has no anchor above it; put &{name} before a value first", mark)
            self._aliases += 1
            if self._aliases > MAX_ALIASES:
                raise fail(f"more than {MAX_ALIASES} aliases in one file", mark)
            known, size, height = self._anchors[name]
            self._deepest = max(self._deepest, depth + height)
            self._count(size, mark)
            return known
        if getattr(event, "tag", None) is not None:
            raise fail(f"the tag {event.tag} is not allowed: recipes hold plain values only", mark)
        before, outer = self._nodes, self._deepest
        self._deepest = depth
        self._count(1, mark)
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            # An escape such as "\u202e" in a quoted text is legal; half a character or a NUL is of no use to anyone.
            if re.search("[\x00\ud800-\udfff]", event.value):
                raise fail("this text contains a NUL or half a surrogate pair", mark)
            is_plain = event.implicit[0]
            value = plain_value(event.value, mark) if is_plain else event.value
            node = Scalar(value, mark, written=event.value if is_plain else "")
        elif isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(inner := next(self._events), yaml.SequenceEndEvent):
                items.append(self._node(inner, depth + 1))
            node = Seq(tuple(items), mark)
        else:
            node = self._read_mapping(mark, depth)
        if event.anchor:
            self._anchors[event.anchor] = (node, self._nodes - before, self._deepest - depth)
        self._deepest = max(outer, self._deepest)
        return node

    def _read_mapping(self, mark: Mark, depth: int) -> Map:
        result = Map({}, mark)
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_mark = self._mark(event)
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None or event.anchor:
                raise fail("a key must be plain text", key_mark)
            key = event.value
            if key == "<<" and event.implicit[0]:
                raise fail("merge keys (<<) are not supported; use `defaults` or ${...} to share values", key_mark)
            if not key or not key.isascii() or not key.isprintable() or "${" in key:
                why = "contains ${...}, which is allowed only in values" if "${" in key else "is not plain ASCII text"
                raise fail(f"the key {key!a} {why}; keys are letters, digits, _ and -", key_mark)
            if key in result.items:
                raise fail(f"{key} appears twice; the first is on line {result.keys[key].line}", key_mark)
            value = next(self._events)
            is_empty = isinstance(value, yaml.ScalarEvent) and not value.value and value.implicit[0]
            if is_empty and (joined := re.fullmatch(r"([\w-]+)[:=](.+)", key)):  # `{a:1}`, `{a=1}`: a key of that name
                raise fail(f"YAML reads {key} as a key without a value; write {joined[1]}: {joined[2]}, with a space",
                           key_mark)  # fmt: skip
            result.items[key] = self._node(value, depth + 1)
            result.keys[key] = key_mark
        return result

    def _count(self, size: int, mark: Mark) -> None:
        if self._deepest > MAX_DEPTH:
            raise fail(f"values are nested more than {MAX_DEPTH} levels deep", mark)
        self._nodes += size
        if self._nodes > MAX_NODES:
            raise fail(f"this file expands to more than {MAX_NODES} values", mark)
