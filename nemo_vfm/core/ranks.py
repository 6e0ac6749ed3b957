"""Reads this process's rank from the environment.

torchrun, our own launcher and MPI wrappers set RANK, WORLD_SIZE and LOCAL_RANK. srun sets SLURM_PROCID and the like,
which `adopt_slurm` copies to the same names, so that every other file reads one set of them.
"""

import os
import re
from collections.abc import MutableMapping

from nemo_vfm.core.errors import UserError

#: Without a sign of life for so long, a rank or a run folder's owner is lost: 15 beats missed. A load that keeps Python
#: busy in one call for a minute is no death.
SILENCE_S = 150.0
TIMEOUT_S = 1800.0  #: how long one rank may wait for another
_FIRST_PORT, _NUM_PORTS = 15_000, 10_000  # below what systems give out by themselves (32768 and up)


def rank() -> int:
    """This process's number among those of the run."""
    return _number("RANK", 0)


def count() -> int:
    """How many there are."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """This process's number on its machine: that of its GPU, too."""
    return _number("LOCAL_RANK", rank())


def is_first() -> bool:
    """Whether this is the one that writes what there is only one of: status, metrics, previews, the report."""
    return rank() == 0


def is_given() -> bool:
    """Whether a launcher has set the rank variables, even for a single process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def adopt_slurm(environment: MutableMapping[str, str]) -> None:
    """Put what srun says of a task into the names that torch reads; nothing where torchrun has spoken, or one task.

    Outside of srun, in the batch script itself, Slurm sets SLURM_PROCID and SLURM_NTASKS too, although the script is
    alone: only a step's own names count.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" in environment or not tasks.isdigit() or int(tasks) < 2 or "SLURM_PROCID" not in environment:
        return
    job, step = (environment.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    mixed = sum(int(number) for number in re.findall(r"\d+", f"{job} {step}"))
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "127.0.0.1")
    found = {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": first_host(nodes),
        "MASTER_PORT": str(_FIRST_PORT + mixed % _NUM_PORTS),  # the same on every node, another for the next step
    }
    for name, value in found.items():
        environment.setdefault(name, value)


def first_host(nodes: str) -> str:
    """The first name of Slurm's short form: node001 of `node[001-004,007],gpu5`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes.strip())
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0]) if first else "127.0.0.1"


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdigit():
        raise UserError(
            f"the environment says {name}={text}, which is not a number; unset it, or start through torchrun"
        )
    return int(text)
