"""Defines where jobs run, as `conf/cluster/*.yaml` describes it: a Slurm cluster, or this machine."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from launcher.render.quoting import in_bind, option_name, variable
from nemo_vfm.core.secret import is_secret_name

Restart = Literal["requeue", "resubmit"]
GpuRequest = Literal["gpus_per_node", "gres", "none"]
Setup = Literal["pip"]
#: Names that mean something to the script's own shell, or to the srun in it.
_NOT_FOR_JOBS = re.compile(
    r"BASH\w*|SHELLOPTS|IFS|PS[0-4]|ENV|PROMPT_COMMAND|E?UID|PPID|_|RANDOM|SECONDS|LINENO|(SLURM|SBATCH|SRUN|PMIX?|SPANK)_\w*"
)
_PLAIN_WORD = re.compile(r"[\^=]?[\w:,.-]{1,200}", re.ASCII)
_TIME = re.compile(r"(\d+-)?\d+(:[0-5]?\d){0,2}")
#: `[docker://][USER@][REGISTRY#]IMAGE[:TAG][@DIGEST]`, as enroot reads it; since 4.0 also `REGISTRY/IMAGE`.
_ENROOT_ADDRESS = re.compile(
    r"(dockerd?://)?([^\s@/#]+@)?([^\s@/#]+[#/])?[a-z0-9][a-z0-9/._-]*(:[\w.:-]+)?(@sha256:[0-9a-f]+)?", re.ASCII
)
_IMAGE_FILE = re.compile(r".*\.(sqsh|squashfs|sqfs|sif|img)", re.IGNORECASE)

#: What the script decides by itself, so that a cluster cannot say it twice: stopping, going on and logs depend on it.
OURS = frozenset((
    "account", "array", "chdir", "comment", "constraint", "cpus-per-task", "dependency", "error", "exclude",
    "exclusive", "export", "gpus-per-node", "gres", "job-name", "mem", "no-requeue", "nodes", "ntasks",
    "ntasks-per-node", "open-mode", "output", "partition", "qos", "requeue", "reservation", "segment", "signal", "time",
    "wrap",
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pyxis:
    """A container that srun itself starts, by NVIDIA's pyxis and enroot.

    Args:
        image: a squashfs file, by its whole path, or an image that enroot can name, such as `registry#team/image:tag`.
        mounts: further folders, as path outside -> path inside; the run folder, the code and the folder of the
            submission are mounted in any case, at the same paths.
        writable: whether the root of the container may be written, for the time of the job.
        setup: `pip` installs what the image lacks of nemo_vfm before the work, into the launch folder; null takes an
            image that has nemo_vfm.
    """

    image: str
    mounts: Mapping[str, str] = field(default_factory=dict)
    writable: bool = False
    setup: Setup | None = None

    def __post_init__(self) -> None:
        _check_container(self.image, self.mounts)
        if self.image.startswith(("/", "./", "../")):
            return
        if _IMAGE_FILE.fullmatch(self.image):  # pyxis tells files from addresses by the first character alone
            raise ValueError(
                f"image is {self.image!r}, which pyxis would ask of a registry; give the file's whole path"
            )
        if not _ENROOT_ADDRESS.fullmatch(self.image):
            raise ValueError(
                f"image is {self.image!r}, which enroot cannot read; write the whole path of a squashfs file, or an "
                "address such as registry.example.com#team/image:tag"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Apptainer:
    """A container that Apptainer (or Singularity) starts in each task, where a cluster has no pyxis.

    Args:
        image: a .sif file, or an address that Apptainer knows, such as `docker://registry/team/image:tag`.
        mounts: further folders, as path outside -> path inside; the run folder, the code and the folder of the
            submission are mounted in any case, at the same paths.
        program: the program, by name or path.
        setup: `pip` installs what the image lacks of nemo_vfm before the work, into the launch folder; null takes an
            image that has nemo_vfm.
    """

    image: str
    mounts: Mapping[str, str] = field(default_factory=dict)
    program: str = "apptainer"
    setup: Setup | None = None

    def __post_init__(self) -> None:
        _check_container(self.image, self.mounts)
        if "#" in self.image and not self.image.startswith(("/", "./", "../")):
            raise ValueError(
                f"image is {self.image!r}, as enroot writes it; Apptainer takes docker://{self.image.replace('#', '/')}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """What every node must have before the work begins; a node that has not is excluded, and the job begun again.

    The number of GPUs is compared with what the job asked for, wherever it asked for any.

    Args:
        min_memory_gb: memory that is free, in GB of 2^30 bytes; 0 asks for none.
        min_disk_gb: free on the node's disk for temporary files (TMPDIR, else /tmp), in GB of 2^30 bytes.
        links: whether all NVLinks must be up, where nvidia-smi tells.
    """

    min_memory_gb: int = 0
    min_disk_gb: int = 0
    links: bool = True

    def __post_init__(self) -> None:
        if min(self.min_memory_gb, self.min_disk_gb) < 0:
            raise ValueError(
                f"min_memory_gb ({self.min_memory_gb}) and min_disk_gb ({self.min_disk_gb}) must be at least 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where a recipe is run: what `cluster=NAME` names.

    Args:
        environment: variables for the job: a text replaces what is derived, null leaves a derived one out. Numbers,
            true and false are taken as they are written.
        secrets: variable -> a file that only you can read (mode 0600), whose first line is the value.
    """

    environment: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.environment, *self.secrets):
            if _NOT_FOR_JOBS.fullmatch(variable(name)):
                raise ValueError(f"{name} cannot be set for a job: bash or Slurm reads or sets it itself")
        for name, value in self.environment.items():
            if isinstance(value, float):  # 12.10 would arrive as 12.1
                raise ValueError(
                    f"{name} is the number {value}, which may not be what you typed; quote it as text, on a "
                    f"command line \"cluster.environment.{name}='{value}'\""
                )
            if is_secret_name(name):
                raise ValueError(
                    f"{name} would be written to the script; name a file for it in cluster.secrets, or export it"
                )
        if twice := sorted(set(self.environment) & set(self.secrets)):
            raise ValueError(f"{twice[0]} is in both environment and secrets; keep one")

    @property
    def variables(self) -> dict[str, str | None]:
        """`environment` as a process gets it; None leaves a derived variable out."""
        return {name: None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
                for name, value in self.environment.items()}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Local(Cluster):
    """This machine: the same run folder and exit statuses, and no queue.

    Args:
        environment: variables for the job: a text replaces what is derived, null leaves a derived one out.
        secrets: variable -> a file that only you can read (mode 0600), whose first line is the value.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm(Cluster):
    """A cluster that Slurm looks after, or a part of it whose nodes are alike.

    Args:
        gpu: the kind of GPU, as `nemo-vfm plan --gpu` names it; null where there is none.
        gpus_per_node: GPUs of a node; null asks the cluster, 0 is a cluster without.
        cpus_per_node: cores of a node; null asks the cluster.
        memory_gb: memory that a job takes of each node, in GB; null takes all of it, and of a
            shared node what its partition gives for so many cores.
        time: the longest time of one attempt, as Slurm writes it: 30 minutes, `4:00:00`, `2-00:00:00`.
        partition: of the cluster; null takes its default, as in the four that follow.
        account: who is billed.
        qos: quality of service.
        reservation: nodes that are kept for you.
        constraint: features that nodes must have.
        exclude: nodes that no attempt may use.
        exclusive: whether nodes are shared with nobody.
        gpu_request: how GPUs are asked for: by `--gpus-per-node`, by `--gres`, or not at all, where Slurm has not been
            told of them and whole nodes are given.
        segment: nodes that must stand in one NVLink domain (a rack of NVL72 has 18); null leaves that to Slurm.
        cpu_nodes: nodes without GPUs that a job with a Ray cluster has besides: one heterogeneous job.
        cpus_per_cpu_node: cores of such a node.
        cpu_partition: where these nodes are; null takes `partition`.
        max_at_once: tasks of an array that run at the same time; null is no limit.
        restart: how a job that was preempted or lost a rank begins again: by `requeue`, and where that is refused as
            another job of the same script; or by `resubmit`, always as another job, which Slurm never requeues itself.
        mpi: how srun starts tasks (pmix, pmi2, none); null takes none where the cluster has it: ranks meet without.
        cpu_bind: how srun binds tasks to cores (`cores`, `rank_ldom`); null leaves it to the cluster.
        interface: network interfaces by which ranks meet and NCCL and gloo begin, such as `ib0` or `^lo,docker`.
        ib_timeout: NCCL's exponent on InfiniBand: a packet is given up after 4.096 us x 2^this, 1 to 31.
        rank_timeout_s: that one rank waits for another, in NCCL too, where the submission does not say it.
        node_check: what nodes must have before the work begins; null looks at none.
        container: what tasks run in; null is the Python of the submission.
        modules: environment modules to load first.
        source: a shell file to read first, such as a virtual environment's `activate`.
        options: further options of sbatch, without dashes -> value; null where the option takes none.
        step_options: further options of srun, likewise.
        environment: variables for the job: a text replaces what is derived, null leaves a derived one out.
        secrets: variable -> a file that only you can read (mode 0600), whose first line is the value.
    """

    gpu: str | None = None
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    memory_gb: int | None = None
    time: str | int = "4:00:00"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    exclude: Sequence[str] = ()
    exclusive: bool = True
    gpu_request: GpuRequest = "gpus_per_node"
    segment: int | None = None
    cpu_nodes: int = 0
    cpus_per_cpu_node: int | None = None
    cpu_partition: str | None = None
    max_at_once: int | None = None
    restart: Restart = "requeue"
    mpi: str | None = None
    cpu_bind: str | None = None
    interface: str | None = None
    ib_timeout: int | None = None
    rank_timeout_s: float | None = None
    node_check: NodeCheck | None = None
    container: Pyxis | Apptainer | None = None
    modules: Sequence[str] = ()
    source: Path | None = None
    options: Mapping[str, str | None] = field(default_factory=dict)
    step_options: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Cluster.__post_init__(self)
        if not _TIME.fullmatch(str(self.time)):
            raise ValueError(f"time is {self.time!r}; Slurm takes times such as 30 (minutes), 4:00:00 or 2-00:00:00")
        for name in ("cpus_per_node", "cpus_per_cpu_node", "memory_gb", "segment", "max_at_once"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ValueError(f"{name} is {number}; it must be at least 1, or null")
        if self.gpus_per_node is not None and self.gpus_per_node < 0:
            raise ValueError(f"gpus_per_node is {self.gpus_per_node}; it must be at least 0 (a cluster without GPUs)")
        if self.cpu_nodes < 0 or (self.cpu_nodes and self.cpus_per_cpu_node is None):
            raise ValueError(f"cpu_nodes is {self.cpu_nodes}; it must be at least 0, and needs cpus_per_cpu_node")
        for name in ("cpu_bind", "interface"):
            if (text := getattr(self, name)) is not None and not _PLAIN_WORD.fullmatch(text):
                raise ValueError(f"{name} is {text!r}; it must be a word such as cores, or names such as ib0,ib1")
        if self.ib_timeout is not None and not 1 <= self.ib_timeout <= 31:
            raise ValueError(
                f"ib_timeout is {self.ib_timeout}; it must be an exponent from 1 to 31 (NCCL's default is 20)"
            )
        if self.rank_timeout_s is not None and not 1 <= self.rank_timeout_s < float("inf"):
            raise ValueError(f"rank_timeout_s is {self.rank_timeout_s:g}; it must be at least 1 second")
        for name in (*self.options, *self.step_options):
            option_name(name)
        if ours := sorted(OURS & set(self.options)):
            raise ValueError(f"options: {ours[0]} is set by the script; see the arguments that Slurm takes")


def _check_container(image: str, mounts: Mapping[str, str]) -> None:
    """What would be read as something else: an empty image, or a path that the list of mounts would cut in two."""
    if not image or image.startswith("-"):
        raise ValueError(f"image is {image!r}; it must be a file or an address")
    for outside, inside in mounts.items():
        in_bind(outside), in_bind(inside)
