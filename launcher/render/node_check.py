"""Renders the lines of a script that check every node before the work, so that a broken one costs seconds.

Failures name the node; `epilogue` excludes that node and restarts the job on others.
"""

from launcher.render.job import SlurmJob
from launcher.render.quoting import quoted

_FAILED = 70  # of sysexits: what the script ends with where nothing excludes the node
_TEXT = r"""
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


def definition(job: SlurmJob) -> list[str]:
    """The lines that keep the text of the check in `$check`."""
    if job.cluster.node_check is None or job.ray:
        return []
    return ["# -- What every node must have: cluster.node_check.", "read -r -d '' check << 'CHECK'",
            *text(job).strip("\n").split("\n"), "CHECK", ""]  # fmt: skip


def around(job: SlurmJob, work: list[str]) -> list[str]:
    """The lines of the work, which are not begun where a node fails its check."""
    if job.cluster.node_check is None or job.ray:
        return work
    step = ["srun", "--export=ALL", f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1",
            "--cpus-per-task=1", "--kill-on-bad-exit=0"]  # fmt: skip
    step += [f"--mpi={job.mpi}"] if job.mpi else []
    return [
        f'if ! {" ".join(map(quoted, step))} bash -c "$check"; then',
        f"  status={_FAILED}",
        "else",
        *(f"  {line}" for line in work),
        "fi",
    ]


def text(job: SlurmJob) -> str:
    """What bash runs on each node; its status is 0 where all is well."""
    check = job.cluster.node_check
    assert check is not None
    values = {"GPUS": job.gpus_per_node, "MEMORY": check.min_memory_gb, "DISK": check.min_disk_gb,
              "LINKS": int(check.links)}  # fmt: skip
    found = _TEXT
    for name, value in values.items():
        found = found.replace(f"@{name}@", str(value))
    return found
