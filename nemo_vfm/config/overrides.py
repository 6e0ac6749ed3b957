"""Changes a composed tree by overrides of the command line (`a.b=v`, `~a.b`) and by overlays, class by class.

An overlay is a file `conf/overlay/<name>.yaml` or a folder of such files, each `{for: dotted.Class, set: {...}}`. The
keys under `set` are merged into every node whose `_target_` is that class, wherever it stands. So one small folder
makes any recipe tiny (`smoke`), and a new recipe needs no overlay file of its own. With `missing: argument` they are
merged only where the recipe leaves that argument to the user (`???`), and with `where: {address: value}` only where the
node has these values. `made: {argument: {by: command, as: value}}` says which command makes what the user must give;
without `by`, the value is there for everybody.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

from nemo_vfm.config.interpolate import FORM
from nemo_vfm.config.recipe_errors import UNSEEN, Mark, SourceText, did_you_mean, fail, printable, some_of
from nemo_vfm.config.roots import Roots
from nemo_vfm.config.tree import MISSING, TARGET, Map, Node, Scalar, Seq, drop, find, join, merge, put, to_plain, walk
from nemo_vfm.config.yaml_source import MAX_BYTES, parse, plain_value, read, read_foreign

_CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}
MAX_PARTS = 50  # of an address; what lays trees over one another recurses
_PATH = re.compile(r"[A-Za-z0-9_][\w-]*(?:\.[A-Za-z0-9_][\w-]*)*", re.ASCII)
SLOT = "overlay"


@dataclass(frozen=True, slots=True)
class Override:
    """A change asked for on the command line."""

    path: str  #: the dotted address
    value: Node | None  #: the new value; None means "remove"
    text: str  #: what stands behind the first `=`
    mark: Mark  #: the place, for messages


def is_address(text: str) -> bool:
    """Names joined by dots, not too many."""
    return _PATH.fullmatch(text) is not None and text.count(".") < MAX_PARTS


def parse_override(word: str) -> Override:
    """Read `a.b=v` or `~a.b`; the first `=` separates.

    A value that begins with `[`, `{` or a quote is YAML; any other is taken whole, so `caption=one: two #3` is a text.
    """
    mark = Mark(SourceText.from_word(word[:2000]))
    removed = word.startswith("~")
    path, equals, text = (word[1:], "=", "") if removed else word.partition("=")
    if not equals:
        raise fail(f"{word!r} is not a change; write key=value without spaces, or ~key to remove", mark)
    if not is_address(path):  # maybe of another command line
        better = path.strip("+-~ ").replace("/", ".").partition("@")[0]
        advice = f"write at most {MAX_PARTS} names joined by dots, such as steps.train.lr"
        if removed and "=" in path:
            advice = f"to remove, write ~{path.partition('=')[0]}"
        elif better != path and is_address(better):
            why = "`+` is not supported: an unknown key is an error; " if path.startswith("+") else ""
            advice = f"{why}write {better}={word.partition('=')[2].strip()}"
        raise fail(f"{printable(path, 100)!r} is not an address; {advice}", mark)
    at = Mark(mark.source, 1, 1 if removed else len(path) + 2)
    return Override(path, None if removed else _value(text, at), text, at)


def swept_words(words: Sequence[str]) -> list[str]:
    """Of the words behind --sweep those with several values, or the first where none has; the others are changes."""
    free = [word for word in words if not word.startswith(("~", "run_dir="))]
    return [word for word in free if len(alternatives(word.partition("=")[2])) > 1] or free[:1]


def alternatives(text: str) -> list[str]:
    """The parts between commas that stand in no bracket and no quotes."""
    open_: list[str] = []
    cuts = [-1]
    for position, letter in enumerate(text):
        if open_ and letter == open_[-1]:
            open_.pop()
        elif letter in _CLOSING and not (open_ and open_[-1] in "\"'"):
            open_.append(_CLOSING[letter])
        elif letter == "," and not open_:
            cuts.append(position)
    return [text[start + 1 : end].strip() for start, end in pairwise([*cuts, len(text)])]


def apply(root: Map, change: Override) -> Map:
    """The tree with one change made. A mapping merges with what is there, anything else replaces it."""
    # Inside a list, a value or an interpolation it would be lost or would surprise: say where to make it.
    parts = change.path.split(".")
    for length in range(1, len(parts)):
        address = ".".join(parts[:length])
        holder = find(root, address)
        if holder is None:
            break
        if isinstance(holder, Scalar) and isinstance(holder.value, str) and "${" in holder.value:
            raise fail(f"{address} is {holder.value}; change that instead, or give {address} a mapping", change.mark)
        if isinstance(holder, Scalar) and holder.value is not None and holder.value != "???":
            raise fail(f"{address} is a single value, so it has no {parts[length]}", change.mark)
        if not isinstance(holder, Map | Scalar):
            raise fail(f"{address} is a list, and a list can only be set as a whole: {address}=[...]", change.mark)
    present = find(root, change.path)
    _refuse_no_change(present, change.value, change.path)
    if change.value is not None:
        return put(root, change.path, merge(present, change.value) if present else change.value, change.mark)
    if present is None:
        above, _, last = change.path.rpartition(".")
        node = find(root, above)
        known = [join(above, key) for key in node.items] if isinstance(node, Map) else []
        raise fail(f"there is no {change.path} to remove{did_you_mean(join(above, last), known)}", change.mark)
    return drop(root, change.path)


def _value(text: str, mark: Mark) -> Node:
    if len(text) > MAX_BYTES or UNSEEN.search(text):
        raise fail("this value is too long or contains invisible characters", mark)
    if text[:1] in ("[", "{", '"', "'"):
        return _with_mark(parse(text, mark.source.name, is_file=False), mark)
    return Scalar(plain_value(text, mark), mark)


def _with_mark(node: Node, mark: Mark) -> Node:
    """The same tree with every place set to the word on the command line: its columns would count from the `=`."""
    if isinstance(node, Map):
        return Map({k: _with_mark(v, mark) for k, v in node.items.items()}, mark, dict.fromkeys(node.items, mark))
    if isinstance(node, Scalar):
        return replace(node, mark=mark)
    return type(node)(tuple(_with_mark(item, mark) for item in node.items), mark)


def _refuse_no_change(present: Node | None, value: Node | None, path: str) -> None:
    """An empty mapping would merge with a filled one and change nothing: say how to empty that."""
    if not (isinstance(present, Map) and isinstance(value, Map)) or value.target() not in (None, present.target()):
        return
    for name, below in value.items.items():
        _refuse_no_change(present.items.get(name), below, join(path, name))
    if value.items or not present.items:
        return
    names = list(present.items)
    how = (f"~{path} removes it" if present.target() else
           f"~{path} {path}={{}} empties it, and ~{join(path, names[0])} removes one")  # fmt: skip
    raise fail(f"an empty mapping changes nothing here ({some_of(names)}): {how}", value.mark, path)


@dataclass(frozen=True, slots=True)
class OverlayRule:
    """What a file says."""

    wanted: str  #: the class that it is for
    changes: Map  #: what it sets
    missing: str | None  #: an argument that must be the user's to give
    where: Mapping[str, object]  #: values that the node must have, by address
    #: of arguments, a command that makes something to give, or nothing, and what that is
    made: Mapping[str, tuple[str, str]]

    def fits(self, node: Map) -> bool:
        wanted = self.where if self.missing is None else {**self.where, self.missing: MISSING}
        found = ((find(node, address), value) for address, value in wanted.items())
        return node.target() == self.wanted and all(isinstance(one, Scalar) and one.value == value
                                                    for one, value in found)  # fmt: skip


def apply_overlays(root: Map, names: Sequence[str], roots: Roots) -> tuple[Map, list[OverlayRule]]:
    """The tree with the overlays laid over it, in the order given, and their rules."""
    rules: list[OverlayRule] = []
    for name in names:
        mark = Mark(SourceText(f"--overlay {name}", (), is_file=False))
        for file in roots.overlay(name, mark):
            rules.append(_rule(file, mark, is_foreign=roots.is_foreign(file)))
            laid = _lay(root, rules[-1])
            assert isinstance(laid, Map)
            root = laid
    return root, rules


def makers(root: Map, rules: Sequence[OverlayRule]) -> dict[str, str]:
    """What helps with a value that a recipe leaves to the user, by the value's address.

    Of several rules the first counts, and one for the value itself before those for what refers to it.
    """
    found: dict[str, str] = {}
    referred: dict[str, str] = {}
    for rule, (path, node) in product(rules, list(walk(root))):
        for argument, (command, value) in rule.made.items() if isinstance(node, Map) and rule.fits(node) else ():
            own = join(path, argument)
            address, seen = own, {""}
            while address not in seen:  # to where a chain of references leads, such as `path: ${input}` to `input`
                seen.add(address)
                there = find(root, address)
                match = FORM.fullmatch(str(there.value)) if isinstance(there, Scalar) else None
                address = (match and match["path"]) or address
            left = find(root, address)
            if isinstance(left, Scalar) and left.value == MISSING:
                how = f"`{command}` creates some; then" if command else "to try it out,"
                (found if address == own else referred).setdefault(address, f"; {how} add {address}={value}")
    return referred | found


def _rule(file: Path, mark: Mark, *, is_foreign: bool) -> OverlayRule:
    rule = read_foreign(file, mark, ("for",)) if is_foreign else read(file)
    for key in rule.items:
        if key not in ("for", "missing", "where", "set", "made"):
            text = f"an overlay takes only the keys for, missing, where, set and made, not {key}"
            raise fail(text, rule.key_mark(key), key)
    missing = rule.items.get("missing")
    if missing is not None and (not isinstance(missing, Scalar) or not isinstance(missing.value, str)):
        text = "missing must be the name of one argument, such as missing: base"
        raise fail(text, rule.key_mark("missing"), "missing")
    told = to_plain(rule.items.get("made", Map({}, rule.mark)))
    if not isinstance(told, dict) or not all(
        isinstance(one, dict)
        and {"as"} <= one.keys() <= {"by", "as"}
        and all(isinstance(word, str) for word in one.values())
        for one in told.values()
    ):
        raise fail("made must map each argument to {by: COMMAND, as: VALUE}", rule.key_mark("made"), "made")
    made = {argument: (one.get("by", ""), one["as"]) for argument, one in told.items()}
    wanted, changes = rule.items.get("for"), rule.items.get("set", Map({}, rule.mark) if made else None)
    if not isinstance(wanted, Scalar) or not isinstance(wanted.value, str):
        text = "an overlay needs the class that it applies to, such as for: nemo_vfm.train.job.Train"
        raise fail(text, rule.mark, "for")
    if not isinstance(changes, Map) or not (changes.items or made):
        text = "an overlay needs values to set, such as set: {loop: {duration: 2 steps}}"
        raise fail(text, rule.mark, "set")
    if TARGET in changes.items:
        raise fail("an overlay changes arguments, not classes", changes.key_mark(TARGET), "set")
    where = to_plain(rule.items.get("where", Map({}, rule.mark)))
    if not isinstance(where, dict):
        text = "where must map addresses to the values that a node must have, such as where: {kind: a}"
        raise fail(text, rule.key_mark("where"), "where")
    return OverlayRule(wanted.value, changes, None if missing is None else str(missing.value), where, made)


def _lay(node: Node, rule: OverlayRule) -> Node:
    """`changes` on every node of the class; nodes below are reached first, so `set` itself is not searched."""
    if isinstance(node, Seq):
        return replace(node, items=tuple(_lay(item, rule) for item in node.items))
    if not isinstance(node, Map):
        return node
    inner = replace(node, items={key: _lay(below, rule) for key, below in node.items.items()})
    return merge(inner, rule.changes) if rule.fits(inner) else inner
