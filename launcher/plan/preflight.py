"""Checks a launch before it runs: problems, memory, time, GPU hours, storage."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from launcher.columns import in_words, pluralise
from launcher.plan.chain import Share, other_layout
from launcher.plan.launch import EARLIER_S, USUAL_S, Launch, limit_s
from launcher.plan.programs import program
from launcher.plan.recipe_info import query_check, query_plan
from launcher.render.profile import missing
from launcher.request.cluster import Slurm
from launcher.slurm import slurm
from launcher.state import secret_files
from launcher.state.conflicts import objections
from nemo_vfm.config import Roots
from nemo_vfm.core.log import scrub

#: Networks that `nemo-vfm plan` knows, by kind of GPU; another is reckoned as the nearest, and this is said.
_NETWORKS = {"a100": "dgx_a100", "h100": "dgx_h100", "gb200": "gb200_nvl72"}
_NEAREST = "dgx_h100"
_MAX_NAMED = 12  # files of one kind
_UNSEEN = "not looked at: "  # how a line of `check --paths` begins that is no problem


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a preflight found."""

    about: str  #: in a word
    text: str  #: a sentence
    wrong: bool = False  #: whether it keeps the launch from being submitted


def preflight(launch: Launch, *, dry_run: bool = False) -> list[Finding]:
    """All of them, what is wrong first.

    Args:
        dry_run: whether nothing will be submitted, so that what only Slurm could say is no problem.
    """
    with ThreadPoolExecutor(2) as pool:
        check = pool.submit(_check, launch)
        plan = pool.submit(_plan, launch)
        found = [
            *(Finding("run_dir", text, wrong=True) for text in objections(launch)),
            *_missing(launch),
            *(Finding("network", text) for text in launch.work.recipients),
            *(Finding("packages", text) for text in launch.work.packages),
            *_size(launch, dry_run=dry_run),
            *_limit(launch),
            *_profile(launch),
            *check.result(),
            *plan.result(),
            # Whose files are used: a name is looked for in the working directory first.
            *(Finding("files" if number else "cluster file", text) for number, text in enumerate(launch.files)),
            *_code_findings(launch),
        ]
    return sorted(found, key=lambda one: not one.wrong)


def _missing(launch: Launch) -> Iterator[Finding]:
    for path in launch.work.missing:
        yield Finding("recipe", f"you must give {path}: {path}=VALUE", wrong=True)
    secrets = launch.where.secrets
    for name in launch.variables:
        if name not in os.environ and name not in secrets:
            yield Finding("environment", f"the recipe reads ${{env:{name}}}, but {name} is not set; export it, or "
                          f"name a file under cluster.secrets", wrong=True)  # fmt: skip
    for text in secret_files.objections(secrets):
        yield Finding("secrets", text, wrong=True)


def _size(launch: Launch, *, dry_run: bool) -> Iterator[Finding]:
    """What does not fit, what is idle, and what is left to Slurm or pip."""
    where = launch.where
    # Where the number of GPUs is left to Slurm, nobody knows yet what fits.
    guessed = dry_run and isinstance(where, Slurm) and where.gpus_per_node is None
    for share in launch.shares:
        if share.problem:
            yield Finding(share.name, share.problem, wrong=not guessed)
    devices = where.gpus_per_node or 0 if isinstance(where, Slurm) and where.exclusive else 0
    idle = {share.name: devices - share.gpus_per_node for share in launch.shares if share.gpus_per_node < devices}
    if idle:  # GPUs that nobody else may use meanwhile
        each = "; ".join(f"{count} of {devices} by {', '.join(name for name in idle if idle[name] == count)}"
                         for count in dict.fromkeys(idle.values()))  # fmt: skip
        yield Finding("GPUs", f"idle on each node: {each}. cluster.exclusive=false lets others use them")
    if not launch.shares:
        yield Finding("recipe", "its steps are known once these values are set", wrong=True)
    for text in launch.unknown:
        yield Finding("cluster", f"{text}, or the script may change" if dry_run else text, wrong=not dry_run)
    if dry_run and isinstance(where, Slurm) and where.mpi is None and not slurm.is_here():
        yield Finding("cluster", "mpi must come from Slurm, which is not here; give cluster.mpi=none, or the script "
                      "may change")  # fmt: skip
    if isinstance(where, Slurm) and where.container is not None and where.container.setup:
        yield Finding("container", f"pip installs what {where.container.image} lacks, once, before the work; without a "
                      f"network set PIP_NO_INDEX and PIP_FIND_LINKS in cluster.environment")  # fmt: skip


def _limit(launch: Launch) -> Iterator[Finding]:
    """How long an attempt may take: what it gets done before it is asked to stop must be worth its start."""
    if not isinstance(launch.where, Slurm):
        return
    time, limit, lead = launch.where.time, limit_s(launch.where.time), launch.lead_s
    if limit is None:
        yield Finding("limit", f"cluster.time={time} sets no limit; the partition's limit applies")
        return
    text = (f"cluster.time={time} is {in_words(limit)} for each attempt, which is asked to stop {in_words(lead)} "
            f"before its end")  # fmt: skip
    if lead != USUAL_S:
        text += ", three times the slowest checkpoint of this run and two steps"
    enough = f"cluster.time={-(-2 * (lead + EARLIER_S) // 3600)}:00:00"
    if lead + EARLIER_S >= limit:
        yield Finding("limit", f"{text} or up to a minute earlier, so it would do no work. Give it more, such as "
                      f"{enough}", wrong=True)  # fmt: skip
    elif lead > limit / 2:
        yield Finding("limit", f"{text}: more than half of it. Give it more, such as {enough}")
    else:
        yield Finding("limit", text)


def _profile(launch: Launch) -> Iterator[Finding]:
    """Ranks that are to be recorded and are none, or no program to do it."""
    wanted = launch.request.profile
    if wanted is None:
        return
    ranks = max((share.nodes * share.tasks_per_node for share in launch.shares), default=1)
    if isinstance(launch.where, Slurm) and wanted.ranks[-1] >= ranks:
        yield Finding("profile", f"there is no rank {wanted.ranks[-1]} to record: the ranks are 0 to {ranks - 1}",
                      wrong=True)  # fmt: skip
    if not isinstance(launch.where, Slurm) and program("nsys") is None:
        yield Finding("profile", missing(), wrong=True)
    if not isinstance(launch.where, Slurm) and wanted.ranks != (0,):
        yield Finding("profile", "--profile-ranks has no effect on one machine, whose processes are recorded "
                      "together; leave it out", wrong=True)  # fmt: skip


def _check(launch: Launch) -> list[Finding]:
    """What nemo-vfm thinks of it on so many GPUs, and whether what it reads is there."""
    gpus = max((share.nodes * share.gpus_per_node for share in launch.shares), default=0)
    cluster = launch.where if isinstance(launch.where, Slurm) else None
    mounts: list[str] | None = [] if launch.request.paths else None
    if mounts is not None and cluster is not None and cluster.container is not None:
        mounts += (f"{folder}:{folder}" for folder in dict.fromkeys((launch.workdir, launch.run_dir)))
        mounts += (f"{outside}:{inside}" for outside, inside in cluster.container.mounts.items())
    if not gpus and mounts is None:
        return []
    output = query_check(launch.one, gpus, cluster.gpu if cluster else None, launch.code.root, mounts=mounts)
    said = (*launch.work.recipients, *launch.work.packages)
    lines = [line for line in output.text.strip().splitlines() if line not in said]
    unseen = [Finding("paths", line) for line in lines if line.startswith(_UNSEEN)]
    lines = [line for line in lines if not line.startswith(_UNSEEN)]
    if output.status:
        return [Finding("check", "\n".join([*lines, *output.complaint.strip().splitlines()]), wrong=True)]
    sentences = " ".join(lines[:-1]) if not launch.work.missing else ""  # what is missing is said already
    return [*([Finding("check", sentences)] if sentences else []), *unseen]


def _plan(launch: Launch) -> list[Finding]:
    """Memory, time and storage of a training on GPUs; where it is for another number of them, a layout for that."""
    if not launch.shares:  # too much of the recipe is still to be given
        return []
    where, gpus = launch.where, launch.request.gpus
    if not (isinstance(where, Slurm) and where.gpu):
        return []
    for share in launch.shares:
        if gpus and share.plannable and share.problem == other_layout(gpus, share.ranks):
            found = _query_plan(launch, where.gpu, gpus, share.phase)
            if isinstance(found, str):
                text = f"none is known for {gpus} GPUs: {found}"
            elif not found["ranked"]:
                text = f"`nemo-vfm plan --gpus {gpus}` finds none that fits"
            else:  # the changes that make it for so many GPUs; nobody but the user makes them
                best = found["ranked"][0]
                text = f"the best for {gpus} GPUs, {best['step_s']:.3g} s a step, is {shlex.join(best['changes'])}"
            return [Finding("layout", text)]
    share = max(launch.shares, key=lambda one: one.ranks)
    if not share.plannable or share.step or share.problem or not share.gpus_per_node:
        return []
    found = _query_plan(launch, where.gpu, share.ranks, share.phase)
    if isinstance(found, str):
        return [Finding("estimate", f"none: {found}")]
    return list(_estimates(found, where, share, launch))


def _query_plan(launch: Launch, gpu: str, gpus: int, phase: str) -> Mapping[str, Any] | str:
    network = _NETWORKS.get(gpu, _NEAREST)
    known = network in Roots.standard(launch.request.conf).choices("network")
    return query_plan(launch.one, gpus, gpu, network if known else _NEAREST, phase=phase, code=launch.code.root)


def _estimates(found: Mapping[str, Any], where: Slurm, share: Share, launch: Launch) -> Iterator[Finding]:
    own = found.get("own")
    if own is None:
        why = "; ".join(str(one["why"]) for one in found.get("refused", [])[:2])
        yield Finding("estimate", f"none of this layout{f': {why}' if why else ''}")
    else:
        yield from _of_layout(found, own, where, share)
    each, kept = found["checkpoint_bytes"], found["checkpoints_kept"]
    runs = f"for each of {len(launch.runs)} runs " if launch.runs else ""
    if kept is None:
        yield Finding("storage", f"{runs}{_bytes(each)} a checkpoint, and all are kept, in {launch.run_dir}")
    else:
        yield Finding("storage", f"{runs}{_bytes(each * kept)}: {pluralise(kept, 'checkpoint')} of {_bytes(each)}, one "
                      f"more while it is written, in {launch.run_dir}")  # fmt: skip


def _of_layout(found: Mapping[str, Any], own: Mapping[str, Any], where: Slurm, share: Share) -> Iterator[Finding]:
    total, usable = own["memory_bytes"]["total"], found["gpu"]["usable_bytes"]
    text = f"{total / 2**30:.1f} GiB of the {usable / 2**30:.1f} that one {where.gpu} has to fill"
    end = ", estimated" if own["fits"] else ": it does not fit; `nemo-vfm plan` names layouts that do"
    yield Finding("memory", f"{text}{end}", wrong=not own["fits"])
    network = "" if where.gpu in _NETWORKS else f", assuming the network of a {_NEAREST}"
    yield Finding("time", f"{own['step_s']:.3g} s a step{network}, estimated")
    if own["gpu_hours"] is not None:
        hours = own["days"] * 24
        phase = f" of the phase {found['phase']}" if found.get("phase") else ""
        runs = max(1, share.array)
        each = f"{runs} runs of " if share.array else ""
        span = f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"
        place = f"{span} on {pluralise(share.ranks, 'GPU')}, in attempts of at most {where.time}"
        yield Finding(
            "cost", f"{own['gpu_hours'] * runs:,.0f} GPU hours: {each}{found['steps']:,} steps{phase}, {place}"
        )


def _code_findings(launch: Launch) -> Iterator[Finding]:
    """The copy of the code, file by file where git would not show it, and what of it may run."""
    code = launch.code
    size = f", {_bytes(code.num_bytes)}" if code.files else ""
    if not code.files:
        use = ""
    elif names := launch.modules.trusted:
        use = f"; {', '.join(names)} {'are' if len(names) > 1 else 'is'} imported from there, by --trust"
    elif launch.imports_code:
        use = "; nemo_vfm is imported from there"
    else:
        has_own = "nemo_vfm/__init__.py" in code.files
        own = " It has its own nemo_vfm; to use it, add --trust nemo_vfm." if has_own else ""
        use = f", for the record: nothing in it is imported unless --trust names it.{own}"
    yield Finding("code", f"{code.why}{size}{use}")
    if code.untracked:
        total = _bytes(sum(len(code.files[path].content) for path in code.untracked))
        yield Finding("untracked", f"{pluralise(len(code.untracked), 'file')} not tracked by git, {total}, "
                      f"copied too: {name_list(code.untracked)}")  # fmt: skip
    if code.left:
        named = [f"{path} ({what})" for path, what in code.left.items()]
        yield Finding("keys", f"are not copied, tracked or not: {name_list(named)}")
    for name, where in launch.modules.passed_over.items():
        yield Finding("code", f"{name} is installed, and {where} is used instead of the repository's {name}")


def name_list(names: Sequence[str]) -> str:
    """The first of them, each on one line whatever it holds."""
    shown = ", ".join(scrub(name).replace("\n", "?") for name in names[:_MAX_NAMED])
    return f"{shown} and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else shown


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:.3g} {unit}" if unit != "B" else f"{number:.0f} B"
        number /= 1000
    raise AssertionError
