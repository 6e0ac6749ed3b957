"""Prepares a launch: collects everything that it consists of; nothing is written, nothing submitted.

The same arguments on the same files give the same bytes, so what a dry run shows is what would be submitted.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from launcher.plan.chain import Share, SweptRun, chain, share_out
from launcher.plan.recipe_info import RecipeInfo, sweep, work
from launcher.plan.trusted_modules import Modules, job_imports, modules
from launcher.render.containers import environment_folder
from launcher.render.job import SlurmJob
from launcher.request.cluster import Slurm
from launcher.request.cluster_config import Where, cluster_of
from launcher.request.request import LaunchRequest
from launcher.slurm import slurm
from launcher.state.git import root_of
from launcher.state.snapshot import Code, nothing, packages, requirements, take
from nemo_vfm.config import ComposedRecipe, compose
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.key_shapes import shape
from nemo_vfm.core.ranks import SILENCE_S
from nemo_vfm.core.secret import conceal
from nemo_vfm.core.storage.files import read_json, sha256_text
from nemo_vfm.core.types.job import LAUNCH, STATUS
from nemo_vfm.core.types.json_value import Json

USUAL_S = 300  # before its time limit a job is asked to end, where nothing has been saved yet
EARLIER_S = 60  # than asked for, at most: Slurm looks at its clock now and then
_MIN_S = 120
_LONGEST_S = 65_520  # Slurm keeps the lead in 16 bits
_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_TIMES, _STEPS = 3, 2  # a busy disk; the step that is under way, and the one after it
POINTS = "points"  #: the launch's folder of a sweep's recipes, each in one with the name of its run
_NO_SECRETS = ("the recipe would contain {}, which launch folders and scripts must not contain: {}. Put it into an "
               "environment variable and write ${{env:NAME}} instead")  # fmt: skip
_REFERENCE = re.compile(r"\$\{[^}]*\}")
_VARIABLE = re.compile(r"(?<!\$)\$\{(?:oc\.)?env:([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch that may be submitted."""

    request: LaunchRequest  #: the words
    where: Where  #: the cluster, with all that had to be asked of it
    values: Json  #: of the cluster, as its file and the changes say
    recipe: str  #: the composed recipe's text
    run_dir: Path  #: the run folder, whole path
    #: what the user typed in the recipe, as changes; a file alone would make it the recipe's.
    typed: tuple[str, ...] = ()
    workdir: Path  #: where it is submitted
    work: RecipeInfo  #: the steps of the recipe
    code: Code  #: the working tree
    modules: Modules  #: what of it the recipe may name
    packages: str  #: a line each
    shares: tuple[Share, ...]  #: of the cluster, in order
    files: tuple[str, ...] = ()  #: sentences on whose files were used, where they are not ours
    unknown: tuple[str, ...] = ()  #: what should have been asked of the cluster and could not be
    name_of_recipe: str  #: of its file
    title: str  #: the first line of its comment
    lead_s: int = USUAL_S  #: seconds before a time limit at which a job is asked to end
    runs: tuple[SweptRun, ...] = ()  #: of a sweep, each a task of the one share; `recipe` is that of the first
    table: Json = None  #: of a sweep: what sweep.json holds before anything has run
    id: str = field(default="", init=False)  #: 12 digits, a hash of everything that makes the launch

    def __post_init__(self) -> None:
        shapes = [(one.name, one.nodes, one.tasks_per_node, one.gpus_per_node, one.cpus_per_task)
                  for one in self.shares]  # fmt: skip
        whole = {
            "recipe": self.recipe, "cluster": self.values, "shares": shapes, "words": self.request.run_words(),
            "code": self.code.hash(), "commit": self.code.commit, "packages": sha256_text(self.packages),
            "run_dir": str(self.run_dir), "workdir": str(self.workdir),
            **({"parts": self.request.parts} if self.request.parts else {}),
            **({"profile": asdict(self.request.profile)} if self.request.profile else {}),
            **({"runs": {run.name: run.recipe for run in self.runs}} if self.runs else {}),
        }  # fmt: skip
        object.__setattr__(self, "id", sha256_text(json.dumps(whole, sort_keys=True))[:12])

    @property
    def folder(self) -> Path:
        """`launch/` in the run folder."""
        return self.run_dir / LAUNCH

    @property
    def name(self) -> str:
        return self.run_dir.name

    @property
    def recipe_file(self) -> Path:
        """Where the composed recipe lies: under its own name, which the report shows; of a sweep, the first one."""
        return next(iter(self.recipes()))

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables that the recipe reads, or any run's of a sweep, by name."""
        return tuple(dict.fromkeys(name for text in self.recipes().values() for name in _VARIABLE.findall(text)))

    @property
    def imports_code(self) -> bool:
        """Whether the work imports from its copy of the working tree."""
        return bool(self.code.files) and job_imports(self.modules, self.code.root)

    @property
    def one(self) -> LaunchRequest:
        """The words, or those for the first run of a sweep."""
        return self.request.override(self.runs[0].changes) if self.runs else self.request

    @property
    def module_path(self) -> tuple[Path, ...]:
        """Folders of its copy of the working tree that it imports from; none where it imports nothing of it."""
        code = self.folder / "code"
        return (code, *(code / folder for folder in self.modules.sources)) if self.imports_code else ()

    def recipes(self) -> dict[Path, str]:
        """The text of each composed recipe, by where it lies."""
        file = f"{self.name_of_recipe}.yaml"
        if not self.runs:
            return {self.folder / file: self.recipe}
        return {self.folder / POINTS / run.name / file: run.recipe for run in self.runs}

    def jobs(self) -> list[SlurmJob]:
        assert isinstance(self.where, Slurm)
        return [_job(self, self.where, share) for share in self.shares]


def prepare(request: LaunchRequest) -> Launch:
    """Look at everything that the words name."""
    chosen = cluster_of(request)
    runs: tuple[SweptRun, ...] = ()
    typed: tuple[str, ...] = ()
    if request.sweep:
        root = root_of(Path.cwd()) if request.code else None
        swept = sweep(request, root)
        runs = tuple(swept_run(point.name, request.override(point.changes), point.changes) for point in swept.points)
        where, unknown = fill_from_slurm(chosen.where)
        composed, found = _compose(request.override(swept.points[0].changes)), swept.points[0].work
        text, run_dir, table, code = runs[0].recipe, swept.folder, swept.table, code_of(request, swept.folder)
        shares = share_out(swept.points, where, request.nodes, request.gpus)
    else:
        composed, table = _compose(request), None
        text, run_dir, typed = composed_text(composed), run_folder(composed), typed_words(composed)
        code = code_of(request, run_dir)
        root, found = code.root, work(request, code.root)
        where, unknown = fill_from_slurm(chosen.where)
        shares = tuple(chain(found, where, request.nodes, request.parts, request.gpus))
    return Launch(
        request=request, where=where, values=chosen.values, recipe=text, run_dir=run_dir, typed=typed,
        workdir=Path.cwd(), work=found, name_of_recipe=found.name, title=found.header, code=code, packages=packages(),
        modules=modules(request.trust, root), files=(*chosen.notes, *composed.shadowing_notes()), shares=shares,
        unknown=tuple(unknown), runs=runs, table=table,
        lead_s=max(map(lead_s, [run.run_dir for run in runs] or [run_dir])),
    )  # fmt: skip


def swept_run(name: str, request: LaunchRequest, changes: Sequence[str]) -> SweptRun:
    """One run of a sweep, from the words for it alone."""
    composed = _compose(request)
    return SweptRun(name=name, recipe=composed_text(composed), run_dir=run_folder(composed), changes=tuple(changes),
                    typed=typed_words(composed))  # fmt: skip


def _compose(request: LaunchRequest) -> ComposedRecipe:
    return compose(request.recipe, request.changes, request.conf, request.overlays)


def code_of(request: LaunchRequest, run_dir: Path | None = None) -> Code:
    """What a submission takes along, whatever else is wrong with it."""
    if not request.code:
        return nothing("no code is copied: the installed packages run")
    return take(Path.cwd(), [run_dir or (Path.cwd() / "runs" if request.sweep else run_folder(_compose(request)))])


def fill_from_slurm(where: Where) -> tuple[Where, Sequence[str]]:
    """The cluster with what its file leaves to Slurm, and sentences on what nobody could say."""
    if not isinstance(where, Slurm):
        return where, ()
    unknown = [name for name in ("gpus_per_node", "cpus_per_node") if getattr(where, name) is None]
    why = "is not here"
    if slurm.is_here():
        try:
            found = None
            if unknown:
                found = slurm.machines(where.partition)
                if found is None:
                    raise UserError(f"the partition {where.partition or 'that jobs go to by default'} has no nodes")
            gpus = where.gpus_per_node if found is None or where.gpus_per_node is not None else found.gpus
            cores = where.cpus_per_node if found is None or where.cpus_per_node is not None else found.cores
            # Our ranks meet by themselves, so the plainest way to start them is best: a site's MPI may fail.
            mpi = "none" if where.mpi is None and "none" in slurm.mpi_flavours() else where.mpi
            return replace(where, gpus_per_node=gpus, cpus_per_node=cores, mpi=mpi), ()
        except UserError as error:  # a dry run needs none; whoever submits is told this again
            why = f"does not answer ({error})"
    return where, [f"{name} must come from Slurm, which {why}; give cluster.{name}=N" for name in unknown]


def run_folder(composed: ComposedRecipe) -> Path:
    """Whole path of the run folder that a recipe asks for."""
    from nemo_vfm.core.storage.uri import local

    try:
        return Path.cwd() / local(composed.run_dir, "run_dir")
    except ValueError as error:
        raise UserError(f"{error}: a run folder needs a file system that all nodes share") from error


def composed_text(composed: ComposedRecipe) -> str:
    """The recipe's text, which is written down; so a key must come by name."""
    text = composed.to_yaml()
    for line, shown in zip(text.splitlines(), conceal(text).splitlines(), strict=False):
        if line != shown:
            raise UserError(_NO_SECRETS.format("a secret", shown.strip()))
        if what := shape(_REFERENCE.sub("", line)):
            raise UserError(_NO_SECRETS.format(what, f"the value of {line.partition(':')[0].strip()}"))
    return text


def typed_words(composed: ComposedRecipe) -> tuple[str, ...]:
    """What the user typed, behind the file that a job reads; its run folder is given whole."""
    return tuple(word for word in composed.typed_words() if not word.startswith("run_dir="))


def _job(launch: Launch, cluster: Slurm, share: Share) -> SlurmJob:
    alone = len(launch.shares) == 1
    if share.phase and share.ranks == 1:  # else it would begin the processes of the next phase by itself, here
        cluster = replace(cluster, environment={"RANK": "0", "WORLD_SIZE": "1", **cluster.environment})
    only = ("--only", share.step) if share.step else ()
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "nemo_vfm")
    setup: tuple[str, ...] = ()
    if cluster.container and cluster.container.setup:
        setup = requirements(with_package=not (launch.imports_code and "nemo_vfm/__init__.py" in launch.code.files))
        python = environment_folder(launch.folder, cluster.container.image, setup) / "bin/python"
        command = (str(python), *command[1:])
    elif cluster.container:
        command = ("nemo-vfm",)
    clusters_own = launch.request.rank_timeout is None and cluster.rank_timeout_s is not None
    timeout = (f"--rank-timeout={cluster.rank_timeout_s:g}",) if clusters_own else ()
    return SlurmJob(
        name=launch.name if alone else f"{launch.name}-{share.name}", run_id=launch.id, folder=launch.folder,
        run_dir=launch.run_dir, recipe=launch.recipe_file, workdir=launch.workdir,
        title=": ".join(filter(None, (launch.name_of_recipe, launch.title))), command=command, setup=setup,
        words=(*only, *launch.typed, *launch.request.run_words(), *timeout),
        step=share.step,
        nodes=share.nodes, tasks_per_node=share.tasks_per_node,
        gpus_per_node=share.gpus_per_node, cpus_per_task=share.cpus_per_task, memory_gb=cluster.memory_gb or 0,
        gpu=cluster.gpu if share.gpus_per_node else None, degrees=share.degrees,
        engine=share.engine, silence_s=launch.request.rank_silence or SILENCE_S, lead_s=launch.lead_s,
        module_path=launch.module_path,
        needed=tuple(name for name in launch.variables if name not in cluster.secrets), ray=share.ray,
        mpi=cluster.mpi or "", array=share.array, profile=launch.request.profile,
        task_words=tuple(run.typed for run in launch.runs) or share.task_words(),
        task_runs=tuple((file, run.run_dir) for file, run in zip(launch.recipes(), launch.runs, strict=False)),
        cluster=cluster,
    )  # fmt: skip


def words_of(request: LaunchRequest) -> Json:
    """The words as they are kept, secrets left out."""
    found = asdict(request) | {"conf": [str(path) for path in request.conf]}
    return {name: [conceal(one) for one in value] if isinstance(value, list | tuple) else value
            for name, value in found.items()}  # fmt: skip


def lead_s(run_dir: Path) -> int:
    """Three times what the slowest checkpoint of the run took, and two steps; whole minutes, as Slurm counts."""
    try:
        status = read_json(run_dir / STATUS)
        saved, step = (float(status.get(name) or 0) for name in ("checkpoint_s", "step_s"))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return USUAL_S
    if not 0 < saved < 86_400 or not 0 <= step < 86_400:
        return USUAL_S
    return min(_LONGEST_S, max(_MIN_S, 60 * -(-int(_TIMES * saved + _STEPS * step) // 60)))


def limit_s(time: str | int) -> int | None:
    """A time limit as Slurm reads it, which rounds up to whole minutes; None where 0 asks for none.

    Behind days come hours; without them, two numbers are minutes and seconds.
    """
    match = _LIMIT.fullmatch(str(time))
    assert match is not None  # a cluster refuses any other
    days, *rest = match.groups()
    first, second, third = (int(text or 0) for text in rest)
    if days is not None or rest[2] is not None:
        seconds = 86_400 * int(days or 0) + 3600 * first + 60 * second + third
    else:
        seconds = 60 * first + second
    return 60 * -(-seconds // 60) or None
