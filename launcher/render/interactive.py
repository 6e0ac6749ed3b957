"""Renders a script that opens a shell on one of a job's nodes, with its variables, modules, secrets and container.

Secrets are read here, by the script, and reach the node in srun's environment: no value is written into the script.
"""

from collections.abc import Iterator
from dataclasses import replace

from launcher.render import containers
from launcher.render.job import SlurmJob
from launcher.render.quoting import quoted
from launcher.render.script import surroundings, variables


def shell_script(job: SlurmJob) -> str:
    """Lines for bash; the last one waits for the node and becomes the shell."""
    one = replace(job, nodes=1, tasks_per_node=1, cpus_per_task=job.cpus_per_task * job.tasks_per_node, module_path=(),
                  array=0, task_words=(), task_runs=())  # fmt: skip
    enter = [quoted(word) for word in (*containers.options(one, variables(one)), *containers.before(one))]
    lines = [" ".join(["exec srun --pty", *(quoted(word) for word in _wanted(one))]), *enter, "bash -i"]
    return "\n".join([*surroundings(one), *_guard(one), " \\\n  ".join(lines), ""])


def _guard(job: SlurmJob) -> Iterator[str]:
    if job.cluster.secrets or job.needed:
        yield "if [[ $missing ]]; then"
        yield '  echo "not set:$missing; export them first, or name files in cluster.secrets" >&2'
        yield "  exit 2"
        yield "fi"


def _wanted(job: SlurmJob) -> Iterator[str]:
    """Options of srun: what sbatch would be told of one node."""
    cluster = job.cluster
    yield f"--job-name={job.name}-shell"
    for name in ("account", "partition", "qos", "reservation", "constraint"):
        if (value := getattr(cluster, name)) is not None:
            yield f"--{name}={value}"
    yield from ("--nodes=1", "--ntasks=1", f"--cpus-per-task={job.cpus_per_task}")
    if job.gpus_per_node and cluster.gpu_request != "none":
        by = {"gpus_per_node": "--gpus-per-node=", "gres": "--gres=gpu:"}[cluster.gpu_request]
        yield f"{by}{job.gpus_per_node}"
    if job.memory_gb or cluster.exclusive:
        yield f"--mem={job.memory_gb}G" if job.memory_gb else "--mem=0"
    if cluster.exclusive:
        yield "--exclusive"
    if cluster.exclude:
        yield f"--exclude={','.join(cluster.exclude)}"
    yield from (f"--time={cluster.time}", f"--chdir={job.workdir}")
    if job.mpi:
        yield f"--mpi={job.mpi}"
    for name, option in {**cluster.options, **cluster.step_options}.items():
        yield f"--{name}" if option is None else f"--{name}={option}"
