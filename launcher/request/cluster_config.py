"""Composes the requested cluster's configuration like a recipe, and records whose file it is."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from launcher.request import cluster_trust
from launcher.request.cluster import Local, Slurm
from launcher.request.request import CLUSTER, LaunchRequest
from nemo_vfm.config import RecipeError, Roots, compose, trust_list
from nemo_vfm.config.build import make
from nemo_vfm.config.compose import RESERVED
from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.recipe_check import Checker
from nemo_vfm.config.recipe_errors import Mark, Problem, Source, fail, shown_path
from nemo_vfm.config.roots import BUILT_IN
from nemo_vfm.config.tree import Map, Node, Scalar, plain, walk
from nemo_vfm.config.yaml_source import parse
from nemo_vfm.core.network.key_shapes import looks_like_a_key, shape
from nemo_vfm.core.secret import conceal, register
from nemo_vfm.core.types.json_value import Json

Where = Slurm | Local
SLOT = "cluster"
_NO_SECRETS = ("this would be written to the script, and scripts never store environment values. Jobs inherit your "
               "environment, so drop it; or name a file that only you can read under cluster.secrets")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCluster:
    """A cluster.

    Args:
        where: what its file describes.
        values: the same as plain values, as they are kept for later.
        notes: sentences: whose file it is, and what of it runs by `--trust cluster`.
    """

    where: Where
    values: Json
    notes: tuple[str, ...] = ()


def cluster_of(request: LaunchRequest) -> ChosenCluster:
    """The cluster that is asked for.

    Raises:
        RecipeError: there is no such file, or something is wrong in it or in a change, or it needs `--trust cluster`.
    """
    roots = Roots.standard(request.conf)
    mark = Mark(Source.typed(f"{SLOT}={request.cluster}"), 1, len(SLOT) + 2)
    file = roots.require_ingredient(SLOT, request.cluster, mark)
    changes = [_inner(word) for word in request.cluster_changes]
    composed = compose(file, changes, request.conf)
    root = composed.root.without(*RESERVED)
    made = _made(root, roots, request)
    whose = roots.whose(file)
    # Nobody asked where the package lies: its own files go by the name that documentation gives them.
    name = f"conf/{SLOT}/{file.name}" if whose == BUILT_IN else shown_path(str(file))
    return replace(made, notes=(f"{name}, {whose}", *made.notes))


def cluster_again(values: Json, request: LaunchRequest) -> Where:
    """The cluster of an earlier launch, from the values that it kept; its folder may be a stranger's, too."""
    root = parse(json.dumps(values), "launch.json", is_file=False)
    assert isinstance(root, Map)
    return _made(root, Roots.standard(), request).where


def _inner(word: str) -> str:
    """A change as it is for the file itself: `time=1:00:00` for `cluster.time=1:00:00`, `~qos` for `~cluster.qos`."""
    removed = "~" if word.startswith("~") else ""
    return removed + word.removeprefix("~").removeprefix(f"{SLOT}.")


def _made(root: Map, roots: Roots, request: LaunchRequest) -> ChosenCluster:
    root = _as_written(root)
    _refuse_keys(root)
    for path, node in _secrets(root):
        raise fail(_NO_SECRETS, node.mark, path)
    tree, problems = resolve(root)
    _refuse_keys(tree)  # a reference may put two halves together
    checker = Checker((*trust_list(request.trust), "launcher.request.cluster."), roots.targets)
    part = checker.node(tree, Where, "", tree.mark)
    found: list[Problem] = [*problems, *checker.problems]
    if found:
        raise RecipeError(found)
    trusted = cluster_trust.objections(root)  # asked for last: nobody should trust a slip of the pen
    if trusted and not request.trusts_cluster:
        raise RecipeError(trusted)
    made: Where = make(part)
    values: Any = plain(tree)
    notes = [f"{one.path} of {one.mark.place()} is used, because of --trust {CLUSTER}" for one in trusted]
    return ChosenCluster(where=made, values=values, notes=tuple(notes))


def _as_written(root: Map) -> Map:
    """The tree with the numbers of `environment` as texts: 1_000 and 12.10 are not to arrive as 1000 and 12.1."""
    environment = root.items.get("environment")
    if not isinstance(environment, Map):
        return root
    items = {name: replace(node, value=node.written) if _is_number(node) else node
             for name, node in environment.items.items()}  # fmt: skip
    return replace(root, items={**root.items, "environment": replace(environment, items=items)})


def _is_number(node: Node) -> TypeGuard[Scalar]:
    return isinstance(node, Scalar) and type(node.value) in (int, float) and bool(node.written)


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
