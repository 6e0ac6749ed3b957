"""Takes the machine to plan for from the words by which `vfm-launch submit` names a cluster and its size."""

import argparse
from dataclasses import dataclass

from nemo_vfm.cli.arguments import GPU, NETWORK
from nemo_vfm.config import Roots, compose
from nemo_vfm.config.recipe_errors import Mark, Source
from nemo_vfm.config.tree import Map, find, plain
from nemo_vfm.core.errors import UserError

_SLOT, _SIZES = "cluster", ("nodes", "gpus")


@dataclass(frozen=True, slots=True)
class _Machine:
    """What a cluster's file says of its nodes, as far as `plan` asks; None where it says nothing."""

    gpu: str | None = None
    gpus_per_node: int | None = None
    network: str | None = None


def with_cluster(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments of `plan`, in which changes name no cluster any more: they say how many GPUs of which kind.

    Args:
        arguments: `gpus`, `gpu` and `network` are None where they are not given; an option wins over a cluster.

    Raises:
        RecipeError: there is no such cluster.
        UserError: it is not said for how many GPUs, or the cluster has none.
    """
    ours = [word for word in arguments.overrides if _path(word).partition(".")[0] in (_SLOT, *_SIZES)]
    sizes = {_path(word): word for word in ours if _path(word) in _SIZES}
    names = [word for word in ours if _path(word) == _SLOT]
    found = _machine(names[-1], ours, arguments) if names else _Machine()
    given = dict(vars(arguments), overrides=[word for word in arguments.overrides if word not in ours])
    if arguments.gpus is None:
        given["gpus"] = _gpus(sizes, found.gpus_per_node)
    given["gpu"] = arguments.gpu or found.gpu or GPU
    given["network"] = arguments.network or found.network or NETWORK
    return argparse.Namespace(**given)


def _path(word: str) -> str:
    return word.removeprefix("~").partition("=")[0]


def _gpus(sizes: dict[str, str], per_node: int | None) -> int:
    if not sizes or ("nodes" in sizes and per_node is None):
        raise UserError("it is not said for how many GPUs: give --gpus N, or cluster=NAME and nodes=N as "
                        "`vfm-launch submit` takes them")  # fmt: skip
    if len(sizes) > 1:
        raise UserError(f"{' and '.join(sizes.values())} are two sizes; give one, and the other follows")
    ((name, word),) = sizes.items()
    number = word.partition("=")[2]
    if not number.isdecimal() or int(number) < 1:
        raise UserError(f"{name} must be a whole number, one or more, got {word}")
    return int(number) * (per_node if name == "nodes" and per_node else 1)


def _machine(named: str, ours: list[str], arguments: argparse.Namespace) -> _Machine:
    """GPUs of a node, their kind and the network between them, of the cluster's file and what changes it."""
    roots, name = Roots.standard(arguments.conf), named.partition("=")[2]
    file = roots.require_ingredient(_SLOT, name, Mark(Source.typed(named), 1, len(_SLOT) + 2))
    changes = [word.replace(f"{_SLOT}.", "", 1) for word in ours if _path(word).startswith(f"{_SLOT}.")]
    root = compose(file, changes, arguments.conf).root
    gpu, per_node, segment = (_value(root, key) for key in ("gpu", "gpus_per_node", "segment"))
    if not isinstance(per_node, int) or per_node < 1 or not isinstance(gpu, str):
        raise UserError(f"cluster={name} names no GPUs, so there is nothing to plan for; choose another, or add "
                        f"cluster.gpu=h100 cluster.gpus_per_node=8")  # fmt: skip
    domain = per_node * (segment if isinstance(segment, int) else 1)
    networks = [one for one in (name, f"{gpu}_nvl{domain}") if one in roots.choices("network")]
    return _Machine(gpu, per_node, next(iter(networks), None))


def _value(root: Map, key: str) -> object:
    node = find(root, key)
    return None if node is None else plain(node)
