"""Applies an overlay: changes every node of certain classes in a composed tree.

An overlay is a file `conf/overlay/<name>.yaml` or a folder of such files, each `{for: dotted.Class, set: {...}}`. The
keys under `set` are merged into every node whose `_target_` is that class, wherever it stands. So one small folder
makes any recipe tiny (`smoke`), and a new recipe needs no overlay file of its own. With `missing: argument` they are
merged only where the recipe leaves that argument to the user (`???`), and with `where: {address: value}` only where the
node has these values. `made: {argument: {by: command, as: value}}` says which command makes what the user must give;
without `by`, the value is there for everybody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from nemo_vfm.config.interpolate import FORM
from nemo_vfm.config.recipe_errors import Mark, Source, fail
from nemo_vfm.config.roots import Roots
from nemo_vfm.config.tree import MISSING, TARGET, Map, Node, Scalar, Seq, find, join, merge, plain, walk
from nemo_vfm.config.yaml_source import read, read_foreign

SLOT = "overlay"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a file says.

    Args:
        wanted: the class that it is for.
        changes: what it sets.
        missing: an argument that must be the user's to give.
        where: values that the node must have, by address.
        made: of arguments, a command that makes something to give, or nothing, and what that is.
    """

    wanted: str
    changes: Map
    missing: str | None
    where: Mapping[str, object]
    made: Mapping[str, tuple[str, str]]

    def fits(self, node: Map) -> bool:
        left = None if self.missing is None else node.items.get(self.missing)
        is_missing = isinstance(left, Scalar) and left.value == MISSING
        return (
            node.target() == self.wanted
            and (self.missing is None or is_missing)
            and all(
                isinstance(found := find(node, address), Scalar) and found.value == value
                for address, value in self.where.items()
            )
        )


def apply_overlays(root: Map, names: Sequence[str], roots: Roots) -> tuple[Map, list[Rule]]:
    """The tree with the overlays laid over it, in the order given, and their rules.

    Raises:
        RecipeError: there is no such overlay, or a file of it is not `{for, set}`.
    """
    rules: list[Rule] = []
    for name in names:
        mark = Mark(Source(f"--overlay {name}", (), is_file=False))
        for file in roots.overlay(name, mark):
            rules.append(_rule(file, mark, is_foreign=roots.is_foreign(file)))
            laid = _lay(root, rules[-1])
            assert isinstance(laid, Map)
            root = laid
    return root, rules


def makers(root: Map, rules: Sequence[Rule]) -> dict[str, str]:
    """What helps with a value that a recipe leaves to the user, by the value's address.

    Of several rules the first counts, and one for the value itself before those for what refers to it.
    """
    found: dict[str, str] = {}
    referred: dict[str, str] = {}
    for rule, (path, node) in product(rules, list(walk(root))):
        for argument, (command, value) in rule.made.items() if isinstance(node, Map) and rule.fits(node) else ():
            own = join(path, argument)
            address = _referred(root, own)
            left = find(root, address)
            if isinstance(left, Scalar) and left.value == MISSING:
                how = f"`{command}` makes some, then" if command else "to try it without your own,"
                (found if address == own else referred).setdefault(address, f"; {how} add {address}={value}")
    return referred | found


def _referred(root: Map, address: str) -> str:
    """Where the value stands to which a chain of references leads, such as `path: ${input}` to `input`."""
    seen = {""}
    while address not in seen:
        seen.add(address)
        node = find(root, address)
        match = FORM.fullmatch(str(node.value)) if isinstance(node, Scalar) else None
        address = (match and match["path"]) or address
    return address


def _rule(file: Path, mark: Mark, *, is_foreign: bool) -> Rule:
    """What a file says."""
    rule = read_foreign(file, mark, ("for",)) if is_foreign else read(file)
    for key in rule.items:
        if key not in ("for", "missing", "where", "set", "made"):
            raise fail(f"an overlay has the keys for, missing, where, set and made, not {key}", rule.key_mark(key), key)
    missing = rule.items.get("missing")
    if missing is not None and (not isinstance(missing, Scalar) or not isinstance(missing.value, str)):
        raise fail("missing is the name of one argument, such as missing: base", rule.key_mark("missing"), "missing")
    made = _made(rule)
    wanted, changes = rule.items.get("for"), rule.items.get("set", Map({}, rule.mark) if made else None)
    if not isinstance(wanted, Scalar) or not isinstance(wanted.value, str):
        raise fail(
            "an overlay needs the class that it applies to, such as for: nemo_vfm.train.job.Train", rule.mark, "for"
        )
    if not isinstance(changes, Map) or not (changes.items or made):
        text = "an overlay needs the values that it sets, such as set: {loop: {duration: 2 steps}}"
        raise fail(text, rule.mark, "set")
    if TARGET in changes.items:
        raise fail("an overlay changes arguments, not classes", changes.key_mark(TARGET), "set")
    where = plain(rule.items.get("where", Map({}, rule.mark)))
    if not isinstance(where, dict):
        raise fail(
            "where says which values a node must have, such as where: {kind: a}", rule.key_mark("where"), "where"
        )
    return Rule(wanted.value, changes, None if missing is None else str(missing.value), where, made)


def _made(rule: Map) -> dict[str, tuple[str, str]]:
    told = plain(rule.items.get("made", Map({}, rule.mark)))
    if not isinstance(told, dict) or not all(
        isinstance(one, dict)
        and {"as"} <= one.keys() <= {"by", "as"}
        and all(isinstance(word, str) for word in one.values())
        for one in told.values()
    ):
        raise fail(
            "made says of an argument {by: a command, as: the value that it makes}", rule.key_mark("made"), "made"
        )
    return {argument: (one.get("by", ""), one["as"]) for argument, one in told.items()}


def _lay(node: Node, rule: Rule) -> Node:
    """`changes` on every node of the class; nodes below are reached first, so `set` itself is not searched."""
    if isinstance(node, Seq):
        return replace(node, items=tuple(_lay(item, rule) for item in node.items))
    if not isinstance(node, Map):
        return node
    inner = replace(node, items={key: _lay(below, rule) for key, below in node.items.items()})
    return merge(inner, rule.changes) if rule.fits(inner) else inner
