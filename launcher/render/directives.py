"""Renders the `#SBATCH` lines at the top of a job's script: what Slurm reads, and why we ask for it."""

from collections.abc import Iterator

from launcher.columns import pluralise
from launcher.render.job import SlurmJob
from launcher.render.quoting import directive


def directives(job: SlurmJob) -> list[str]:
    """The lines, in paragraphs."""
    theirs = [directive(name, value) for name, value in job.cluster.options.items()]
    names = [directive("job-name", job.name), directive("comment", f"vfm {job.run_id}")]
    names += (directive(name, value) for name in ("account", "partition", "qos", "reservation", "constraint")
              if (value := getattr(job.cluster, name)) is not None)  # fmt: skip
    parts = (names, _nodes(job), _time(job), _log(job), theirs, _second_part(job))
    return [line for part in parts if (found := list(part)) for line in ("", *found)][1:]


def _nodes(job: SlurmJob) -> Iterator[str]:
    yield f"# {_machines(job)}"
    yield directive("nodes", str(job.nodes))
    yield directive("ntasks-per-node", str(job.tasks_per_node))
    yield directive("cpus-per-task", str(job.cpus_per_task))
    if job.gpus_per_node and job.cluster.gpu_request == "gpus_per_node":
        yield directive("gpus-per-node", str(job.gpus_per_node))
    elif job.gpus_per_node and job.cluster.gpu_request == "gres":
        yield directive("gres", f"gpu:{job.gpus_per_node}")
    if job.memory_gb:
        yield directive("mem", f"{job.memory_gb}G")
    elif job.cluster.exclusive:  # on a shared node the partition's own share for each core: all would shut others out
        yield f"{directive('mem', '0')}  # all that a node has"
    if job.cluster.exclusive:
        yield f"{directive('exclusive')}  # shared with nobody"
    if job.cluster.segment is not None:
        size = _segment(job.nodes, job.cluster.segment)
        yield f"{directive('segment', str(size))}  # nodes at a time in one NVLink domain of {job.cluster.segment}"
    if job.cluster.exclude:
        yield directive("exclude", ",".join(job.cluster.exclude))


def _second_part(job: SlurmJob) -> Iterator[str]:
    """Nodes without GPUs: what is not said again here, Slurm would take from its defaults."""
    if not job.cpu_nodes:
        return
    cluster = job.cluster
    nodes = pluralise(job.cpu_nodes, "node")
    yield f"# {nodes} without GPUs for Ray, the second part of this job: both begin and end together."
    yield "#SBATCH hetjob"
    named = {"account": cluster.account, "partition": cluster.cpu_partition or cluster.partition, "qos": cluster.qos}
    for name, value in {**named, "reservation": cluster.reservation}.items():
        if value is not None:
            yield directive(name, value)
    sizes = {"nodes": job.cpu_nodes, "ntasks-per-node": 1, "cpus-per-task": cluster.cpus_per_cpu_node, "mem": 0}
    for name, number in sizes.items():
        yield directive(name, str(number))
    if cluster.exclusive:
        yield directive("exclusive")
    yield directive("time", str(cluster.time))


def _segment(nodes: int, domain: int) -> int:
    """The most nodes of a domain that the job's can be cut into: Slurm takes equal groups only."""
    size = max(size for size in range(1, min(nodes, domain) + 1) if nodes % size == 0)
    if size == 1 < nodes:
        raise ValueError(
            f"{nodes} nodes cannot be cut into equal groups within NVLink domains of {domain}; ask for "
            f"{nodes - nodes % domain} or {nodes - nodes % domain + domain} nodes, or cluster.segment=null"
        )
    return size


def _time(job: SlurmJob) -> Iterator[str]:
    yield f"# Time limit of one attempt. USR1 arrives {job.lead_s} s earlier, so that every process can save and exit;"
    yield "# then this script restarts the job. (With `B:` before USR1, only this shell would get the signal.)"
    yield directive("time", str(job.cluster.time))
    yield directive("signal", f"USR1@{job.lead_s}")
    if job.cluster.restart == "requeue":
        yield f"{directive('requeue')}  # if a node fails, Slurm restarts the job on others"
    else:
        yield f"{directive('no-requeue')}  # cluster.restart: this script submits itself once more"
    if job.array:
        limit = "" if job.cluster.max_at_once is None else f"%{job.cluster.max_at_once}"
        yield f"{directive('array', f'0-{job.array - 1}{limit}')}  # each task has its own attempts"


def _log(job: SlurmJob) -> Iterator[str]:
    folder, number = str(job.folder), "%A_%a" if job.array else "%j"
    if "\\" in folder:
        raise ValueError(f"{folder!r} contains a backslash, which Slurm does not allow in a log's name")
    folder = folder.replace("%", "%%")  # in which Slurm fills in nothing
    yield "# One log for all attempts."
    yield directive("output", f"{folder}/logs/%x-{number}.out")
    yield directive("open-mode", "append")
    yield directive("chdir", str(job.workdir))


def _machines(job: SlurmJob) -> str:
    nodes = pluralise(job.nodes, "node")
    tasks = "one process" if job.tasks_per_node == 1 else f"{job.tasks_per_node} processes"
    if not job.gpus_per_node:
        return f"{nodes}, {tasks} on each."
    gpus = pluralise(job.gpus_per_node, "GPU")
    kind = f" ({job.gpu})" if job.gpu else ""
    return f"{nodes} of {gpus}{kind}, {tasks} on each."
