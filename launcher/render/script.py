"""Renders a job's batch script: the same job always gives the same text.

The script is read by people whose job has just failed. So it says what runs and why each variable is set. It shows the
one line that does the work, and then how its end is handled. Whatever came from a recipe, a cluster's file or the
command line is quoted. Of secrets it has names and files, never a value.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from launcher.render import containers, profile, ray_cluster
from launcher.render.batch_hooks import epilogue, prologue
from launcher.render.directives import directives
from launcher.render.environment import Setting, environment
from launcher.render.job import SlurmJob
from launcher.render.quoting import quote, remark, variable
from launcher.request.cluster import Pyxis

_THEIRS = "as the cluster's file says"
_LAST_WORDS_S = 150  # once the silence is over, after which the ranks know that one of them is lost


def script(job: SlurmJob) -> str:
    """The text of `job.sh`."""
    before, behind = [prologue(job).rstrip("\n")], [epilogue(job).rstrip("\n")]
    # A variable of the job's must not be one that the script itself counts with.
    ours = {"status", "check", "missing", "share", "recipe", "run", "ray", "waited", "profiled", "setup", "name",
            *(name for text in (*before, *behind) for name in re.findall(r"\b([a-z_]+)=", text))}  # fmt: skip
    if taken := sorted(ours & {*job.cluster.environment, *job.cluster.secrets, *job.needed}):
        raise ValueError(f"the script has a variable {taken[0]} itself; give the job's variable another name")
    shared = (_exports(job), _secrets(job), containers.forwarding(job, variables(job)))
    start = [*_loads(job), "set -uo pipefail  # not -e: what follows a failure is decided at the end",
             "trap : TERM USR1  # survive both: this shell still has to record how the job ended"]  # fmt: skip
    head = [
        "#!/bin/bash", f"# {remark(job.title or job.name)}", "#",
        f"# Run {remark(job.run_id)}, written by vfm-launch: the same recipe, cluster and code give the same text.",
        "# Change those, not this file. What it makes, and how each attempt ended (launch/attempts.tsv), is in",
        f"#   {remark(str(job.run_dir))}",
    ]  # fmt: skip
    parts = (head, directives(job), start, *shared, _words(job), before, _work(job))
    lines = [line for part in parts if (found := list(part)) for line in (*found, "")]
    return "\n".join([*lines, *behind, ""])


def _loads(job: SlurmJob) -> Iterator[str]:
    cluster = job.cluster
    if cluster.modules:
        yield "# shellcheck source=/dev/null"
        yield "type module > /dev/null 2>&1 || source /etc/profile  # where it is defined"
        yield f"module load {' '.join(map(quote, cluster.modules))}"
    if cluster.source is not None:
        yield "# shellcheck source=/dev/null"
        yield f"source {quote(str(cluster.source))}"


def _exports(job: SlurmJob) -> Iterator[str]:
    yield "# -- Variables: they follow from the kind of GPU and the layout; cluster.environment changes them."
    lines = [(f"export {item.name}={quote(item.value)}", item.reason) for item in _settings(job)]
    if job.module_path:
        lines.append((_path_of_code(job), "the code as it was when the job was submitted"))
    width = max(len(text) for text, _ in lines if len(text) <= 60)
    for text, reason in lines:
        yield f"{text:<{width}}  # {remark(reason)}"


def _settings(job: SlurmJob) -> list[Setting]:
    """What follows from the job, and then what the cluster's file says, in the place of the same names."""
    derived = environment(
        gpu=job.gpu, degrees=job.degrees, engine=job.engine,
        gpus_per_node=job.gpus_per_node * (job.cluster.segment or 1), cpus_per_task=job.cpus_per_task,
    )  # fmt: skip
    theirs = job.cluster.variables
    kept = [item for item in (*derived, *_of_cluster(job)) if item.name not in theirs]
    return kept + [Setting(variable(name), text, _THEIRS) for name, text in theirs.items() if text is not None]


def _of_cluster(job: SlurmJob) -> Iterator[Setting]:
    cluster = job.cluster
    if cluster.interface is not None:
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            yield Setting(name, cluster.interface, "cluster.interface: by which ranks meet")
    if cluster.ib_timeout is not None:
        yield Setting("NCCL_IB_TIMEOUT", str(cluster.ib_timeout), "cluster.ib_timeout: patience with InfiniBand")
    if cluster.container is not None:
        yield Setting("PYTHONNOUSERSITE", "1", "packages in your home were not installed for the image's Python")
    if isinstance(cluster.container, Pyxis) and job.gpu is not None:
        yield Setting("TRITON_CACHE_DIR", f"/tmp/triton-{job.run_id}", "a home that is not mounted is read-only")  # noqa: S108


def _path_of_code(job: SlurmJob) -> str:
    if any(":" in str(folder) for folder in job.module_path):
        raise ValueError(
            f"{str(job.module_path[0])!r} contains a colon, which separates paths in PYTHONPATH; use another run_dir"
        )
    code = ":".join(map(str, job.module_path))
    if job.cluster.container is not None:
        return f"export PYTHONPATH={quote(code)}"
    return f"export PYTHONPATH={quote(code)}${{PYTHONPATH:+:$PYTHONPATH}}"


def _secrets(job: SlurmJob) -> Iterator[str]:
    """Names and files: `read` and `export NAME` show no value, not even under `set -x`."""
    if not job.cluster.secrets and not job.needed:
        return
    yield "# -- Secrets: from files that only you can read, or from the shell that submitted. No value is written here."
    yield "missing="
    for name, file in job.cluster.secrets.items():
        yield f"unset {variable(name)}; IFS= read -r {name} < {quote(str(file))}; export {name}"
    for name in (*job.cluster.secrets, *(name for name in job.needed if name not in job.cluster.secrets)):
        yield f"[[ ${{{variable(name)}:+set}} ]] || missing+=' {name}'"


def _words(job: SlurmJob) -> Iterator[str]:
    if not (job.task_words or job.task_runs):
        return
    what = (
        "recipe of this task of the array, and its run folder" if job.task_runs else "share of this task of the array"
    )
    yield f"# -- The {what}."
    runs = [f"recipe={quote(str(recipe))}; run={quote(str(run))}" for recipe, run in job.task_runs]
    words = [f"own=({' '.join(map(quote, one))})" for one in job.task_words]
    yield 'case "$SLURM_ARRAY_TASK_ID" in'
    lines = zip(*filter(None, (runs, words)), strict=True)
    yield from (f"  {number}) {'; '.join(line)} ;;" for number, line in enumerate(lines))
    yield "esac"


def _work(job: SlurmJob) -> Iterator[str]:
    enter = [quote(word) for word in containers.options(job, variables(job))]
    inside = [quote(word) for word in containers.before(job)]
    whole = [*enter, " ".join(inside)] if inside else enter
    yield from containers.around(job, whole, [*_work_inside(job, enter, inside, whole)])


def _work_inside(job: SlurmJob, enter: list[str], inside: list[str], whole: list[str]) -> Iterator[str]:
    if job.ray:
        yield from ray_cluster.begin(job, whole)
        yield ""
    if job.cluster.node_check is not None and not job.ray:
        yield from ("# -- What every node must have: cluster.node_check.", "read -r -d '' check << 'CHECK'",
                    *check_text(job).strip("\n").split("\n"), "CHECK", "")  # fmt: skip
    yield from profile.definition(job.profile)
    yield "# -- The work."
    if job.tasks > 1 and not job.ray:
        yield "# A process that dies does not end the others at once (--kill-on-bad-exit=0): they find out whom"
        yield f"# they lost, say so, and leave; {_wait_s(job)} s after the first has left, srun ends the rest."
    if job.tasks_per_node > 1 and job.gpus_per_node > 1:
        yield "# block:block gives neighbouring processes neighbouring cores, on the socket that their GPUs hang on."
    which = [quote(str(job.recipe)), quote(f"run_dir={job.run_dir}")]
    if job.task_runs:
        which = ['"$recipe"', '"run_dir=$run"']
    words = ["run", *which, *map(quote, job.words)]
    own = ['"${own[@]}"'] if job.task_words else []
    lines = [" ".join(_step(job)), *enter, " ".join(inside), " ".join(profile.before(job.profile)),
             " ".join([*map(quote, job.command), *words, *own])]  # fmt: skip
    work = [*" \\\n    ".join(line for line in lines if line).split("\n"), "status=$?"]
    work = _after_check(job, work)
    if job.cluster.secrets or job.needed:
        said = '  echo "not set:$missing; export them before you submit, or name files in cluster.secrets" >&2'
        work = ["if [[ $missing ]]; then", said, "  status=2", "else", *(f"  {line}" for line in work), "fi"]
    yield from work
    if job.ray:
        yield from ray_cluster.FINISH.strip("\n").split("\n")


def _wait_s(job: SlurmJob) -> int:
    return round(job.silence_s) + _LAST_WORDS_S


def _step(job: SlurmJob) -> list[str]:
    """srun and its options, quoted; what sbatch was told already, srun knows."""
    found = ["srun", "--export=ALL", f"--cpus-per-task={job.cpus_per_task}"]  # srun forgets the latter since 22.05
    if job.ray:
        found += ["--overlap", "--nodes=1", "--ntasks=1"]
    elif job.tasks > 1:
        found += ["--label", "--kill-on-bad-exit=0", f"--wait={_wait_s(job)}"]
    if job.tasks_per_node > 1 and job.gpus_per_node > 1:
        found.append("--distribution=block:block")
    if job.cluster.cpu_bind is not None:
        found.append(f"--cpu-bind={job.cluster.cpu_bind}")
    if job.mpi:
        found.append(f"--mpi={job.mpi}")
    theirs = job.cluster.step_options.items()
    found += [f"--{name}" if value is None else f"--{name}={value}" for name, value in theirs]
    return [quote(word) for word in found]


def variables(job: SlurmJob) -> list[str]:
    """The variables that the script exports."""
    names = [item.name for item in _settings(job)] + (["PYTHONPATH"] if job.module_path else [])
    names += ray_cluster.VARIABLES if job.ray else ()
    return list(dict.fromkeys([*names, *job.cluster.secrets, *job.needed]))


def shell_script(job: SlurmJob) -> str:
    """Lines for bash that open a shell on one of the job's nodes; they read secrets and write no value of one."""
    one = replace(job, nodes=1, tasks_per_node=1, cpus_per_task=job.cpus_per_task * job.tasks_per_node, module_path=(),
                  array=0, task_words=(), task_runs=())  # fmt: skip
    enter = [quote(word) for word in (*containers.options(one, variables(one)), *containers.before(one))]
    lines = [" ".join(["exec srun --pty", *(quote(word) for word in _srun_options(one))]), *enter, "bash -i"]
    said = '  echo "not set:$missing; export them first, or name files in cluster.secrets" >&2'
    guard = ["if [[ $missing ]]; then", said, "  exit 2", "fi"] if job.cluster.secrets or job.needed else []
    # What the work finds: modules, variables, secrets.
    parts = (_loads(one), _exports(one), _secrets(one), containers.forwarding(one, variables(one)))
    surroundings = [line for part in parts if (found := list(part)) for line in (*found, "")]
    return "\n".join([*surroundings, *guard, " \\\n  ".join(lines), ""])


def _srun_options(job: SlurmJob) -> Iterator[str]:
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


_FAILED = 70  # of sysexits: what the script ends with where nothing excludes the node
# So that a broken node costs seconds: a failure names it, and `epilogue` excludes it and restarts the job on others.
_CHECK = r"""
failed() { echo "vfm-launch: the check of node $SLURMD_NODENAME failed: $1" >&2; exit 1; }
gpus=@GPUS@ memory=@MEMORY@ disk=@DISK@ links=@LINKS@
if (( gpus )); then
  seen="$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2> /dev/null | grep -c .)"
  (( seen >= gpus )) || failed "nvidia-smi shows $seen GPUs of $gpus"
  down="$(nvidia-smi nvlink --status 2> /dev/null | grep -c -i inactive)"
  (( links && down )) && failed "$down NVLinks are down"
fi
free="$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)"
(( free >= memory )) || failed "$free GB of memory are free, $memory GB are required"
free="$(df --output=avail -BG "${TMPDIR:-/tmp}" | tail -n 1 | tr -d ' G')"
(( free >= disk )) || failed "$free GB of ${TMPDIR:-/tmp} are free, $disk GB are required"
exit 0
"""


def _after_check(job: SlurmJob, work: list[str]) -> list[str]:
    """The lines of the work, which are not begun where a node fails its check."""
    if job.cluster.node_check is None or job.ray:
        return work
    step = ["srun", "--export=ALL", f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1",
            "--cpus-per-task=1", "--kill-on-bad-exit=0"]  # fmt: skip
    step += [f"--mpi={job.mpi}"] if job.mpi else []
    return [f'if ! {" ".join(map(quote, step))} bash -c "$check"; then', f"  status={_FAILED}", "else",
            *(f"  {line}" for line in work), "fi"]  # fmt: skip


def check_text(job: SlurmJob) -> str:
    """What bash runs on each node; its status is 0 where all is well."""
    check = job.cluster.node_check
    assert check is not None
    values = {"GPUS": job.gpus_per_node, "MEMORY": check.min_memory_gb, "DISK": check.min_disk_gb,
              "LINKS": int(check.links)}  # fmt: skip
    found = _CHECK
    for name, value in values.items():
        found = found.replace(f"@{name}@", str(value))
    return found
