# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Applies an overlay: changes every node of certain classes in a composed tree.

An overlay is a file `conf/overlay/<name>.yaml` or a folder of such files, each `{for: dotted.Class, set: {...}}`. The
keys under `set` are merged into every node whose `_target_` is that class, wherever it stands. So one small folder
makes any recipe tiny (`smoke`), and a new recipe needs no overlay file of its own. With `missing: argument` they are
merged only where the recipe leaves that argument to the user (`???`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nemo_vfm.config.recipe_errors import Mark, Source, fail
from nemo_vfm.config.roots import Roots
from nemo_vfm.config.tree import MISSING, TARGET, Map, Node, Scalar, Seq, merge
from nemo_vfm.config.yaml_source import read, read_foreign

SLOT = "overlay"


def apply_overlays(root: Map, names: Sequence[str], roots: Roots) -> Map:
    """The tree with the overlays laid over it, in the order given.

    Raises:
        RecipeError: there is no such overlay, or a file of it is not `{for, set}`.
    """
    for name in names:
        mark = Mark(Source(f"--overlay {name}", (), is_file=False))
        for file in roots.overlay(name, mark):
            laid = _lay(root, _rule(file, mark, is_foreign=roots.is_foreign(file)))
            assert isinstance(laid, Map)
            root = laid
    return root


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a file says: the class it is for, what it sets, and the argument that must be the user's to give."""

    wanted: str
    changes: Map
    missing: str | None

    def fits(self, node: Map) -> bool:
        left = None if self.missing is None else node.items.get(self.missing)
        is_missing = isinstance(left, Scalar) and left.value == MISSING
        return node.target() == self.wanted and (self.missing is None or is_missing)


def _rule(file: Path, mark: Mark, *, is_foreign: bool) -> _Rule:
    """What a file says."""
    rule = read_foreign(file, mark, ("for",)) if is_foreign else read(file)
    for key in rule.items:
        if key not in ("for", "missing", "set"):
            raise fail(f"an overlay has the keys for, missing and set, not {key}", rule.key_mark(key), key)
    missing = rule.items.get("missing")
    if missing is not None and (not isinstance(missing, Scalar) or not isinstance(missing.value, str)):
        raise fail("missing is the name of one argument, such as missing: base", rule.key_mark("missing"), "missing")
    wanted, changes = rule.items.get("for"), rule.items.get("set")
    if not isinstance(wanted, Scalar) or not isinstance(wanted.value, str):
        raise fail(
            "an overlay needs the class that it applies to, such as for: nemo_vfm.train.job.Train", rule.mark, "for"
        )
    if not isinstance(changes, Map) or not changes.items:
        raise fail("an overlay needs the values that it sets, such as set: {duration: 2 steps}", rule.mark, "set")
    if TARGET in changes.items:
        raise fail("an overlay changes arguments, not classes", changes.key_mark(TARGET), "set")
    return _Rule(wanted.value, changes, None if missing is None else str(missing.value))


def _lay(node: Node, rule: _Rule) -> Node:
    """`changes` on every node of the class; nodes below are reached first, so `set` itself is not searched."""
    if isinstance(node, Seq):
        return replace(node, items=tuple(_lay(item, rule) for item in node.items))
    if not isinstance(node, Map):
        return node
    inner = replace(node, items={key: _lay(below, rule) for key, below in node.items.items()})
    return merge(inner, rule.changes) if rule.fits(inner) else inner
