# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The name of a cluster and changes to it in, the cluster and its plain values out: it is composed as a recipe is."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from launcher.asked import Asked
from launcher.cluster import Local, Slurm
from nemo_vfm.config import RecipeError, Roots, compose, trust_list
from nemo_vfm.config.build import make
from nemo_vfm.config.compose import RESERVED
from nemo_vfm.config.errors import Mark, Problem, Source, fail
from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.schema import Checker
from nemo_vfm.config.source import parse
from nemo_vfm.config.tree import Map, Node, Scalar, plain, walk
from nemo_vfm.core.key_shapes import looks_like_a_key, shape
from nemo_vfm.core.secret import conceal, register
from nemo_vfm.core.types import Json

Where = Slurm | Local
SLOT = "cluster"
_NO_SECRETS = ("this would stand in the script, and scripts keep nothing of the environment. Jobs inherit yours, so "
               "leave it out; or name a file that only you can read under cluster.secrets")  # fmt: skip


def cluster_of(asked: Asked) -> tuple[Where, Json]:
    """The cluster that is asked for, and its values as they are kept for later.

    Raises:
        RecipeError: there is no such file, or something is wrong in it or in a change.
    """
    roots = Roots.standard(asked.conf)
    mark = Mark(Source("command line", (f"{SLOT}={asked.cluster}",), is_file=False), 1, len(SLOT) + 2)
    file = roots.require_ingredient(SLOT, asked.cluster, mark)
    changes = [_inner(word) for word in asked.cluster_changes]
    return _made(compose(file, changes, asked.conf).root.without(*RESERVED), roots, asked.trust)


def cluster_again(values: Json, trust: Sequence[str] = ()) -> Where:
    """The cluster of an earlier launch, from the values that it kept."""
    root = parse(json.dumps(values), "launch.json", is_file=False)
    assert isinstance(root, Map)
    return _made(root, Roots.standard(), trust)[0]


def _inner(word: str) -> str:
    """A change as it is for the file itself: `time=1:00:00` for `cluster.time=1:00:00`, `~qos` for `~cluster.qos`."""
    removed = "~" if word.startswith("~") else ""
    return removed + word.removeprefix("~").removeprefix(f"{SLOT}.")


def _made(root: Map, roots: Roots, trust: Sequence[str]) -> tuple[Where, Json]:
    _refuse_keys(root)
    for path, node in _secrets(root):
        raise fail(_NO_SECRETS, node.mark, path)
    tree, problems = resolve(root)
    _refuse_keys(tree)  # a reference may put two halves together
    checker = Checker((*trust_list(trust), "launcher.cluster."), roots.choices)
    part = checker.node(tree, Where, "", tree.mark)
    found: list[Problem] = [*problems, *checker.problems]
    if found:
        raise RecipeError(found)
    made: Where = make(part)
    values: Any = plain(tree)
    return made, values


def _secrets(root: Node) -> Iterator[tuple[str, Scalar]]:
    """What comes from the environment, and what holds the value of a variable that is a key by its name."""
    for path, node in walk(root):
        text = node.value if isinstance(node, Scalar) and isinstance(node.value, str) else ""
        if isinstance(node, Scalar) and (("${" in text and "env:" in text) or conceal(text) != text):
            yield path, node


def _refuse_keys(root: Node) -> None:
    """Raises RecipeError at a value that looks like a key; of a variable, letters that nobody types are enough."""
    for path, node in walk(root):
        if isinstance(node, Scalar) and isinstance(node.value, str):
            what = looks_like_a_key(node.value) if path.startswith("environment.") else shape(node.value)
            if what:
                register(node.value)  # the complaint shows the line that it stands on
                raise fail(f"this looks like {what}, and it {_NO_SECRETS.partition(' ')[2]}", node.mark, path)
