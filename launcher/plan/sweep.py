"""Plans the runs of a sweep and their one share of the cluster: an array has tasks of one size only.

A combination is one job: its whole recipe, on the devices of its widest step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.columns import counted
from launcher.plan.chain import Share, chain
from launcher.plan.recipe_info import Point, Step, Work
from launcher.request.cluster_config import Where
from nemo_vfm.core.errors import UserError

SHARE = "points"  #: the name of the array, which also names its script


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRun:
    """One run of a sweep.

    Args:
        name: of its folder.
        recipe: its composed text.
        run_dir: whole path.
        changes: of the recipe that is swept; its run folder is among them.
        typed: what the user typed, swept or not, as changes.
    """

    name: str
    recipe: str
    run_dir: Path
    changes: tuple[str, ...]
    typed: tuple[str, ...] = ()


def shared(points: Sequence[Point], cluster: Where, nodes: int | None, gpus: int | None = None) -> tuple[Share, ...]:
    """What each task takes; nothing where the recipe's steps are not known yet.

    Raises:
        UserError: they do not take the same.
    """
    shares = [_one(point, cluster, nodes, gpus) for point in points if point.work.steps]
    for point, share in zip(points, shares, strict=False):
        if _size(share) != _size(shares[0]):
            raise UserError(
                f"{points[0].name} takes {_size(shares[0])}, and {point.name} takes {_size(share)}: all tasks of a "
                f"job array have one size, so sweep each size separately, with its own run_dir"
            )
    return tuple(
        replace(share, name=SHARE, array=len(points), degrees=_widest(shares), ray=any(one.ray for one in shares),
                problem=next(filter(None, (one.problem for one in shares)), ""))
        for share in shares[:1]
    )  # fmt: skip


def _widest(shares: Sequence[Share]) -> Mapping[str, int]:
    """Of each axis: the script's variables are those of all its tasks, and one for tensor ranks harms no other."""
    axes = dict.fromkeys(axis for share in shares for axis in share.degrees)
    return {axis: max(share.degrees.get(axis, 1) for share in shares) for axis in axes}


def _one(point: Point, cluster: Where, nodes: int | None, gpus: int | None) -> Share:
    (share,) = chain(replace(point.work, steps=(_whole(point.work, point.name),)), cluster, nodes, gpus=gpus)
    return share


def _whole(work: Work, name: str) -> Step:
    """All steps as one."""
    if any(len({phase.ranks for phase in step.phases}) > 1 for step in work.steps):
        raise UserError(f"the phases of {name} need different numbers of devices, but a task of a job array has "
                        f"one number; submit each combination separately")  # fmt: skip
    widest = max(work.steps, key=lambda step: step.ranks)
    return replace(
        widest, name="", rounds=0, on_gpu=any(step.on_gpu for step in work.steps),
        ray=any(step.ray for step in work.steps),
    )  # fmt: skip


def _size(share: Share) -> str:
    gpus = f" and {counted(share.gpus_per_node, 'GPU')}" if share.gpus_per_node else ""
    return f"{counted(share.nodes, 'node')} of {counted(share.tasks_per_node, 'task')}{gpus}"
