"""Holds everything that one batch script needs, resolved and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.render.profile import ProfileSettings
from launcher.request.cluster import Slurm
from nemo_vfm.core.ranks import SILENCE_S

#: Bytes: a file's name has 255 at most, and the log adds the numbers of a job and of a task.
_LONGEST_NAME = 255 - len("-4294967295_4294967295.out")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job of Slurm's: what it runs, on what, and how it may end."""

    name: str  #: of the job; also the first part of its log's name
    run_id: str  #: hash of everything that makes the launch
    folder: Path  #: the launch folder, whole path
    run_dir: Path  #: the run folder, whole path
    recipe: Path  #: the composed recipe, whole path
    workdir: Path  #: where it was submitted: relative paths of the recipe start there
    title: str = ""  #: the recipe and the first line of its comment, for whoever reads the script
    #: what runs nemo-vfm: `("nemo-vfm",)` in a container, `(sys.executable, "-m", "nemo_vfm")` without; after a setup,
    #: the Python of its environment.
    command: tuple[str, ...]
    #: requirements that pip installs first where the image lacks them; none takes the image as it is.
    setup: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  #: what follows `run RECIPE run_dir=...`: options of `nemo-vfm run`, paths made whole
    #: the one of a workflow that the job does, whose checkpoints show how far it is; empty where it does all.
    step: str = ""
    nodes: int  #: how many
    tasks_per_node: int  #: processes of a node
    gpus_per_node: int  #: GPUs of a node; 0 where there are none
    cpus_per_task: int  #: cores of a process
    memory_gb: int = 0  #: memory of each node in GB; 0 is all of it, or of a shared node what the partition gives
    gpu: str | None = None  #: the kind of GPU by name, such as h100; None where there are none
    #: the widest layout of the job, by axis: tensor, context, pipeline, shard, replicate, virtual.
    degrees: Mapping[str, int] = field(default_factory=dict)
    engine: str = ""  #: what trains: `torch`, `megatron`, or empty where nothing does
    silence_s: float = SILENCE_S  #: seconds without a sign of life after which the ranks give one up
    lead_s: int = 300  #: seconds before the time limit at which the job is asked to end
    max_restarts: int = 3  #: attempts without progress after which it is not begun again
    #: the copy of the code, and folders in it, put first on PYTHONPATH; none takes what is installed.
    module_path: tuple[Path, ...] = ()
    #: variables that the recipe reads as `${env:NAME}`: names only, inherited from the submission.
    needed: tuple[str, ...] = ()
    mpi: str = ""  #: how srun starts tasks, as `srun --mpi=list` calls it; empty leaves it to the cluster's default
    array: int = 0  #: tasks of an array; 0 is none
    task_words: tuple[tuple[str, ...], ...] = ()  #: for each task of an array, what follows `words`
    #: for each task of an array whose tasks are runs of their own, its recipe and its run folder.
    task_runs: tuple[tuple[Path, Path], ...] = ()
    ray: bool = False  #: whether a Ray cluster is begun inside the allocation, and stopped at its end
    profile: ProfileSettings | None = None  #: what is recorded of chosen ranks; None is nothing
    cluster: Slurm  #: what its file says

    def __post_init__(self) -> None:
        for name in ("folder", "run_dir", "recipe", "workdir"):
            if not getattr(self, name).is_absolute():
                raise ValueError(
                    f"{name} is {getattr(self, name)}; a job needs absolute paths, since it runs elsewhere"
                )
        for name in ("nodes", "tasks_per_node", "cpus_per_task", "max_restarts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.name or "/" in self.name or self.name != self.name.strip():
            raise ValueError(
                f"the job's name is {self.name!r}; it also names a log file, so it must not contain / "
                "or begin or end with a space"
            )
        if (length := len(self.name.encode())) > _LONGEST_NAME:
            raise ValueError(f"the job's name {self.name[:20]}... has {length} bytes, too long to name a log (at most "
                             f"{_LONGEST_NAME}); shorten the last folder of run_dir")  # fmt: skip
        if self.task_words and len(self.task_words) != self.array:
            raise ValueError(f"{len(self.task_words)} lists of words for an array of {self.array}")
        if self.task_runs and len(self.task_runs) != self.array:
            raise ValueError(f"{len(self.task_runs)} runs for an array of {self.array}")

    @property
    def cpu_nodes(self) -> int:
        """Nodes without GPUs that the job has besides, as the second part of a heterogeneous one."""
        return self.cluster.cpu_nodes if self.ray else 0

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node
