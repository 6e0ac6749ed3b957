"""Plans the chain of jobs for a recipe's steps: how much of the cluster each job takes.

Each share but the first begins when the one before it has succeeded. A training whose phases are for different numbers
of devices has a share for each such number. Work that can be divided has an array of tasks for each of its rounds, and
then one job that needs all of it. The runs of a sweep have one share: an array has tasks of one size only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from launcher.columns import pluralise
from launcher.plan.recipe_info import Point, RecipeInfo, Step
from launcher.request.cluster import Slurm
from launcher.request.cluster_config import Where
from nemo_vfm.core.errors import UserError

ALONE = "job"  #: the name of the one share of a recipe that is one job


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one job takes of a cluster."""

    name: str  #: of the share, which also names its script: step, phase, or both; `job` of a recipe with neither
    step: str = ""  #: what `--only` takes; empty for the whole recipe
    phase: str = ""  #: the first phase that it does; empty where there is one number of devices
    kind: str = ""  #: the class of the job
    ranks: int  #: processes
    nodes: int  #: how many
    tasks_per_node: int  #: processes of a node
    gpus_per_node: int  #: GPUs of a node
    cpus_per_task: int  #: cores of a process
    on_gpu: bool  #: whether a GPU is of use
    degrees: Mapping[str, int] = field(default_factory=dict)  #: of the widest layout
    engine: str = ""  #: what trains: `torch`, `megatron`, or empty where nothing does
    plannable: bool = False  #: see `Step`
    any_nodes: bool = False  #: see `Step`
    ray: bool = False  #: whether a Ray cluster is wanted
    array: int = 0  #: tasks of an array; 0 is none
    round: int = 0  #: of its parts
    problem: str = ""  #: why it cannot be: the layout does not fit the nodes; empty where it can

    def task_words(self) -> tuple[tuple[str, ...], ...]:
        """What each task of the array is told besides."""
        return tuple(("--part", f"{number}/{self.array}@{self.round}") for number in range(self.array))


def chain(work: RecipeInfo, cluster: Where, nodes: int | None, parts: int = 0, gpus: int | None = None) -> list[Share]:
    """The shares, in order.

    Args:
        nodes: what was asked for, of the widest share; None where the layout, or `gpus`, says it.
        parts: tasks of each array, for work that can be shared out; 0 makes none.
        gpus: what was asked for instead, of the widest share with GPUs.
    """
    devices = _devices(cluster)
    nodes = -(-gpus // devices) if gpus and devices else nodes
    pieces: list[tuple[Step, str, int, Mapping[str, int]]] = []
    for step in work.steps:
        if step.any_nodes:
            step = replace(step, ranks=(nodes or 1) * (devices or 1))
        elif step.whole_nodes and devices:
            step = replace(step, ranks=step.whole_nodes * devices)
        pieces += _pieces(step)
    widest = max((ranks for _, _, ranks, _ in pieces), default=1) if gpus is None else None
    found = [
        _share(step, phase, ranks, degrees, cluster, nodes if ranks == widest or step.ray else None)
        for step, phase, ranks, degrees in pieces
    ]
    if gpus is not None:
        # The widest share with GPUs, and each that a Ray cluster makes so wide, must take as many as were asked for.
        most = max((share.ranks for share in found if share.gpus_per_node), default=0)
        found = [replace(share, problem=share.problem or _mismatch(share, gpus, devices))
                 if not most or (share.gpus_per_node and (share.ranks == most or share.ray)) else share
                 for share in found]  # fmt: skip
    rounds = {step.name: step.rounds if parts else 0 for step in work.steps}
    chained: list[Share] = []
    for share in found:
        prefix = "" if share.name == ALONE else f"{share.name}-"
        chained += (replace(share, name=f"{prefix}parts-{number}", array=parts, round=number)
                    for number in range(rounds[share.step]))  # fmt: skip
        chained.append(share)
    return chained


def _mismatch(share: Share, gpus: int, devices: int) -> str:
    """Why a share does not take so many GPUs; empty where it does."""
    taken = share.nodes * share.gpus_per_node
    if taken == gpus:
        return ""
    if not devices:
        return f"gpus={gpus} is not possible: according to gpus_per_node, this cluster has no GPUs"
    if not taken:
        return f"gpus={gpus} would be idle: no part of this recipe computes on a GPU"
    if gpus % devices and (gpus > devices or share.ray or share.any_nodes):
        fits = " or ".join(f"gpus={count * devices}" for count in (gpus // devices, gpus // devices + 1) if count)
        return f"gpus={gpus} does not fill whole nodes of {devices}; use {fits}"
    return other_layout(gpus, taken)


def other_layout(gpus: int, taken: int) -> str:
    """The problem of a layout that is for another number of GPUs than was asked for."""
    return f"gpus={gpus}, but the recipe's layout is for {taken}; use gpus={taken}, or change the degrees"


def _devices(cluster: Where) -> int:
    """GPUs of a node, as far as they are known."""
    return cluster.gpus_per_node or 0 if isinstance(cluster, Slurm) else 0


def _pieces(step: Step) -> Iterator[tuple[Step, str, int, Mapping[str, int]]]:
    """(step, its phase, ranks, degrees): neighbouring phases on as many ranks are one."""
    groups = [list(group) for _, group in groupby(step.phases, key=lambda phase: phase.ranks)]
    if len(groups) < 2:
        yield step, "", step.ranks, step.degrees
        return
    for first, *_ in groups:
        yield step, first.name, first.ranks, first.degrees


def _share(step: Step, phase: str, ranks: int, degrees: Mapping[str, int], cluster: Where, nodes: int | None) -> Share:
    devices = _devices(cluster)
    uses_gpus = bool(step.on_gpu and devices)
    with_ray = step.ray and isinstance(cluster, Slurm)  # one process, which Ray has work for all nodes from
    count, tasks, problem = (nodes or 1, 1, "") if with_ray else _fit_ranks(ranks, devices if uses_gpus else 0, nodes)
    if not isinstance(cluster, Slurm) and (nodes or 1) > 1:
        problem = f"nodes={nodes} is not possible: this cluster is your own machine"
    cores = (cluster.cpus_per_node or 0) if isinstance(cluster, Slurm) else 0
    gpus = devices if with_ray else tasks
    shared = uses_gpus and isinstance(cluster, Slurm) and not cluster.exclusive
    parts = max(tasks, devices if shared and not with_ray else 1)
    return Share(
        name="-".join(filter(None, (step.name, phase))) or ALONE, step=step.name, phase=phase,
        kind=step.kind, ranks=ranks, nodes=count, tasks_per_node=tasks, gpus_per_node=gpus if uses_gpus else 0,
        cpus_per_task=max(1, cores // parts), on_gpu=step.on_gpu, degrees=degrees,
        engine=step.engine, plannable=step.plannable, any_nodes=step.any_nodes, ray=step.ray, problem=problem,
    )  # fmt: skip


def _fit_ranks(ranks: int, devices: int, nodes: int | None) -> tuple[int, int, str]:
    """(nodes, tasks of a node, what does not fit)."""
    if not devices:
        count = nodes or 1
        if ranks % count == 0:
            return count, ranks // count, ""
        even = ", ".join(f"nodes={n}" for n in range(1, ranks + 1) if ranks % n == 0)
        processes = "one process" if ranks == 1 else f"{ranks} processes"
        return count, max(1, ranks // count), f"{processes} cannot be spread evenly over {count} nodes; use {even}"
    needed, rest = divmod(ranks, devices)
    fits, tasks = (1, ranks) if ranks <= devices else (needed, devices)
    if rest and ranks > devices:
        whole = f"{needed * devices} or {(needed + 1) * devices}"
        problem = (f"the recipe's layout is for {ranks} GPUs, which do not fill whole nodes of {devices}; change "
                   f"its degrees so that their product is {whole}")  # fmt: skip
        return nodes or needed + 1, devices, problem
    if nodes is None or nodes == fits:
        return fits, tasks, ""
    problem = (f"nodes={nodes} gives {nodes * devices} GPUs, {devices} a node, but the degrees of the recipe's "
               f"layout multiply to {ranks}; use nodes={fits}, or change the degrees")  # fmt: skip
    return nodes, devices, problem


SHARE = "points"  #: the name of the array, which also names its script


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRun:
    """One run of a sweep."""

    name: str  #: of its folder
    recipe: str  #: its composed text
    run_dir: Path  #: whole path
    changes: tuple[str, ...]  #: of the recipe that is swept; its run folder is among them
    typed: tuple[str, ...] = ()  #: what the user typed, swept or not, as changes


def share_out(points: Sequence[Point], cluster: Where, nodes: int | None, gpus: int | None = None) -> tuple[Share, ...]:
    """What each task takes; nothing where the recipe's steps are not known yet."""
    whole = [replace(point.work, steps=(_merge_steps(point.work, point.name),)) for point in points if point.work.steps]
    shares = [share for work in whole for share in chain(work, cluster, nodes, gpus=gpus)]
    for point, share in zip(points, shares, strict=False):
        if _size(share) != _size(shares[0]):
            raise UserError(
                f"{points[0].name} takes {_size(shares[0])}, and {point.name} takes {_size(share)}: all tasks of a "
                f"job array have one size, so sweep each size separately, with its own run_dir"
            )
    # The script's variables are those of all its tasks, and one for tensor ranks harms no other: so the widest.
    axes = dict.fromkeys(axis for share in shares for axis in share.degrees)
    widest = {axis: max(share.degrees.get(axis, 1) for share in shares) for axis in axes}
    return tuple(
        replace(share, name=SHARE, array=len(points), degrees=widest, ray=any(one.ray for one in shares),
                problem=next(filter(None, (one.problem for one in shares)), ""))
        for share in shares[:1]
    )  # fmt: skip


def _merge_steps(work: RecipeInfo, name: str) -> Step:
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
    gpus = f" and {pluralise(share.gpus_per_node, 'GPU')}" if share.gpus_per_node else ""
    return f"{pluralise(share.nodes, 'node')} of {pluralise(share.tasks_per_node, 'task')}{gpus}"
