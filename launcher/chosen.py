# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The name of a cluster and changes to it in, the cluster and its plain values out: read as parts of a recipe are."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from launcher.asked import Asked
from launcher.cluster import Local, Slurm
from nemo_vfm.config import RecipeError, Roots, trust_list
from nemo_vfm.config.build import make
from nemo_vfm.config.errors import Mark, Problem, Source, fail
from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.overrides import Override, apply, parse_override
from nemo_vfm.config.schema import Checker
from nemo_vfm.config.source import parse, read
from nemo_vfm.config.tree import Map, Node, Scalar, find, plain, put, walk
from nemo_vfm.core.types import Json

Where = Slurm | Local
_SLOT = "cluster"


def cluster_of(asked: Asked) -> tuple[Where, Json]:
    """The cluster that is asked for, and its values as they are kept for later.

    Raises:
        RecipeError: there is no such file, or something is wrong in it or in a change.
    """
    roots = Roots.standard(asked.conf)
    mark = Mark(Source("command line", (f"{_SLOT}={asked.cluster}",), is_file=False), 1, len(_SLOT) + 2)
    file = roots.require_ingredient(_SLOT, asked.cluster, mark)
    root = Map({_SLOT: read(file)}, mark, {_SLOT: mark})
    for change in map(parse_override, asked.cluster_changes):
        root = _changed(root, change, roots)
    return _made(root, roots, asked.trust)


def cluster_again(values: Json, trust: Sequence[str] = ()) -> Where:
    """The cluster of an earlier launch, from the values that it kept."""
    node = parse(json.dumps(values), "launch.json", is_file=False)
    mark = node.mark
    return _made(Map({_SLOT: node}, mark, {_SLOT: mark}), Roots.standard(), trust)[0]


def _changed(root: Map, change: Override, roots: Roots) -> Map:
    """One change made; the name of an ingredient stands for its file, as in a recipe."""
    is_text = isinstance(change.value, Scalar) and isinstance(change.value.value, str)
    present = find(root, change.path)
    is_value = isinstance(present, Scalar) and present.value is not None
    if is_text and not is_value and roots.choices(change.path):
        return put(
            root, change.path, read(roots.require_ingredient(change.path, change.text, change.mark)), change.mark
        )
    return apply(root, change)


def _made(root: Map, roots: Roots, trust: Sequence[str]) -> tuple[Where, Json]:
    for path, node in _secrets(root):
        raise fail(f"{node.value} would stand in the script, and scripts keep nothing of the environment. Jobs inherit "
                   "yours, so leave it out; or name a file that only you can read under cluster.secrets",
                   node.mark, path)  # fmt: skip
    tree, problems = resolve(root)
    checker = Checker((*trust_list(trust), "launcher.cluster."), roots.choices)
    part = checker.node(tree.items[_SLOT], Where, _SLOT, tree.items[_SLOT].mark)
    found: list[Problem] = [*problems, *checker.problems]
    if found:
        raise RecipeError(found)
    made: Where = make(part)
    values: Any = plain(tree.items[_SLOT])
    return made, values


def _secrets(root: Node) -> Iterator[tuple[str, Scalar]]:
    for path, node in walk(root):
        if isinstance(node, Scalar) and isinstance(node.value, str) and "env:" in node.value and "${" in node.value:
            yield path, node
