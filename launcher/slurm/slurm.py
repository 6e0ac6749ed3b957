"""Calls Slurm's commands and parses their output. No other file calls sbatch, squeue, scontrol and the like.

They are called with lists of arguments, never through a shell, and without the environment of a surrounding job.
Otherwise a submission from inside a job would hand that job's size and ranks on to the new one.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.plan import programs
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import scrub

_PATIENCE_S = 120.0  # a busy controller answers late
_ERRORS = re.compile(r"^\w+: (?:fatal: |error: )?", re.MULTILINE)
#: Of a job around us, by the beginnings of names; SLURM_CONF says where the cluster is, and stays.
_SURROUNDING = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "PMI_", "PMI2_", "PMIX_",
                "OMPI_", "PRTE_", "TORCHELASTIC_")  # fmt: skip
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
          "ROLE_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")  # fmt: skip
_MEETING = ("MASTER_ADDR", "MASTER_PORT")
_FIELDS = ("%i", "%F", "%T", "%r", "%L", "%S", "%N", "%j")  # a name may hold anything, so it is last
_GPU = re.compile(r"gpu:(?:(?P<kind>[^:(,]+):)?(?P<count>\d+)")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that Slurm knows, in the order of `_FIELDS`."""

    id: str  #: its number, of an array's task such as `12_3`
    array: str  #: the array's number; the job's own where there is none
    state: str  #: in Slurm's word: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED and so on
    reason: str  #: why it waits, in Slurm's word
    left: str  #: of its time limit, as Slurm writes it
    begins: str  #: when it began, or is thought to begin; ISO 8601 in the cluster's own time, or N/A
    nodes: str  #: in Slurm's short form
    name: str  #: of the job

    @property
    def waits_or_runs(self) -> bool:
        return self.state in ("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "REQUEUED", "RESIZING",
                              "REQUEUE_HOLD", "REQUEUE_FED", "SIGNALING", "STAGE_OUT", "STOPPED")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What each node of a partition has at least."""

    count: int  #: of nodes
    cores: int  #: of a node
    memory_gb: int  #: of a node, rounded down
    gpus: int  #: of a node; 0 where Slurm was told of none
    gpu: str  #: their kind, in the word of the cluster's administrators; empty where they gave none


def interactive(text: str) -> int:
    """Run lines of bash that call srun, in this terminal; their exit status."""
    bash = programs.program("bash")
    if bash is None or programs.program("srun") is None:
        raise UserError("there is no srun on this machine; open the shell from a login node of the cluster. --dry-run "
                        "shows on any machine what would run")  # fmt: skip
    return subprocess.run([bash, "-c", text], env=clean(os.environ), check=False).returncode  # noqa: S603


def is_here() -> bool:
    """Whether this machine has Slurm's commands."""
    return programs.program("sbatch") is not None


def submit(script: Path, workdir: Path, *, after: Sequence[str] = (), words: Sequence[str] = ()) -> str:
    """Put a script into the queue; the number of the job.

    Args:
        script: whole path.
        workdir: where relative paths of the job begin.
        after: jobs that must end well before; where one does not, Slurm takes this one out of the queue.
        words: further options of sbatch, such as `--array=3,5`.
    """
    dependency = [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"] if after else []
    output = _output_of("sbatch", "--parsable", *dependency, *words, str(script), cwd=workdir)
    number = output.strip().splitlines()[-1].partition(";")[0] if output.strip() else ""
    if not number.isdigit():
        raise UserError(
            f"sbatch accepted {script} but returned no job id:  {scrub(output.strip())!r}; find it with squeue --me"
        )
    return number


def squeue(ids: Sequence[str]) -> dict[str, QueuedJob]:
    """What Slurm still knows of these jobs and of each task of arrays, by the numbers that sbatch gave."""
    if not ids:
        return {}
    form = "|".join(_FIELDS)
    output = _output_of("squeue", "--me", "--states=all", "--array", "--noheader", f"--format={form}")
    last = len(_FIELDS) - 1
    found = [QueuedJob(*line.strip().split("|", last)) for line in output.splitlines() if line.count("|") >= last]
    return {job.id: job for job in found if job.array in ids or job.id in ids}


def cancel(ids: Sequence[str]) -> None:
    """End jobs; those that have ended are left alone."""
    if ids:
        _output_of("scancel", *ids)


def machines(partition: str | None = None) -> Machines | None:
    """What the nodes of a partition, or of the default one, have, the least of each; None where it has none."""
    # Without a name, the one that jobs go to that name none; there may be none.
    known = [] if partition else _output_of("sinfo", "--noheader", "--format=%P").split()
    which = partition or next((name.removesuffix("*") for name in known if name.endswith("*")), "")
    only = [f"--partition={which}"] if which else []
    lines = _output_of("sinfo", "--noheader", "--Node", *only, "--format=%N|%c|%m|%G").splitlines()
    nodes = {parts[0]: parts for line in lines if len(parts := line.strip().split("|")) == 4}
    if not nodes:
        return None
    gpus = []  # how many and which, of `gpu:h100:8(S:0-1),nvme:1`
    for parts in nodes.values():
        found = list(_GPU.finditer(parts[3]))
        kind = next((match["kind"] for match in found if match["kind"]), "")
        gpus.append((sum(int(match["count"]) for match in found), kind))
    least = min(count for count, _ in gpus)
    return Machines(
        count=len(nodes), cores=min(_number(parts[1]) for parts in nodes.values()),
        memory_gb=min(_number(parts[2]) for parts in nodes.values()) // 1024, gpus=least,
        gpu=next((kind for count, kind in gpus if count == least), ""),
    )  # fmt: skip


def mpi_flavours() -> tuple[str, ...]:
    """How srun can start tasks, in its words: none, pmi2, pmix, pmix_v4 and so on."""
    text = _output_of("srun", "--mpi=list", with_errors=True)
    lines = [line.partition(":")[2] if "specific" in line else line for line in text.splitlines()]
    words = [word.strip(",") for line in lines if "plugin types" not in line for word in line.split()]
    return tuple(dict.fromkeys(word for word in words if re.fullmatch(r"(none|pmi\w*|openmpi|cray\w*)", word)))


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what a job around us has put there, and without relative entries of search paths."""
    inside = {*_RANKS, *(_MEETING if "RANK" in environment else ())}
    return {
        name: programs.whole_paths(value) if name in ("PATH", "PYTHONPATH") else value
        for name, value in environment.items()
        if name == "SLURM_CONF" or (name not in inside and not name.startswith(_SURROUNDING))
    }


def _output_of(program: str, *words: str, cwd: Path | None = None, with_errors: bool = False) -> str:
    path = programs.program(program)
    if path is None:
        raise UserError(f"there is no {program} on this machine; submit from a login node of the cluster. --dry-run "
                        f"shows what would be submitted, and cluster=local runs here")  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603
            [path, *words], env=clean(os.environ), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True,
            encoding="utf-8", errors="replace", timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
    except OSError as error:
        raise UserError(f"{program} cannot be run in {cwd or Path.cwd()}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{program} gave no answer for {_PATIENCE_S:.0f} s; is Slurm's controller up? Look with "
                        "squeue --me before you submit again") from error  # fmt: skip
    if done.returncode:
        errors = (line.strip() for line in _ERRORS.sub("", done.stderr).splitlines())
        why = scrub("; ".join(filter(None, errors))) or f"exit status {done.returncode}"
        raise UserError(f"{program} refused: {why}")
    return done.stdout + (done.stderr if with_errors else "")


def _number(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0
