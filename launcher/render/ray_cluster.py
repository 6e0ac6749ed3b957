"""Renders the lines that start a Ray cluster on a job's nodes, and those that stop it."""

import re
from collections.abc import Sequence

from launcher.render.job import SlurmJob
from launcher.render.quoting import quote

_FIRST_PORT, _NUM_PORTS = 25_000, 5_000  # below what systems give out by themselves, and not where ranks meet
_WAIT_S = 180
_FUNCTION = r"""bash -c "$(declare -f ray_node); ray_node \"\$@\"" ray"""
#: What the lines below export.
VARIABLES = (
    "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR", "RAY_raylet_start_wait_time_s",
)  # fmt: skip

_BEGIN = r"""
# -- A Ray cluster on the nodes of this job: a head on the first, a worker on each other. It serves only those who have
# the token, says in ray.log what it does, and ends when this script closes its end of a pipe, or is gone.
# shellcheck disable=SC2317  # called on each node, by srun
ray_node() {
  trap '' USR1  # the work is asked to save, and needs Ray until it has
  unset RANK LOCAL_RANK WORLD_SIZE  # pyxis sets them in images of PyTorch; a worker that is no rank 0 is silent
  mkdir -m 700 "$RAY_TMPDIR" 2> /dev/null
  [[ -O $RAY_TMPDIR ]] || exit 1
  local role=(--address="$RAY_ADDRESS")
  if (( SLURM_PROCID == 0 )); then
    role=(--head --port="${RAY_ADDRESS##*:}" --include-dashboard=false)
    # Where Slurm knows the node by a name, Ray finds its address by itself.
    [[ ${RAY_ADDRESS%:*} =~ ^[0-9.]+$ ]] && role+=(--node-ip-address="${RAY_ADDRESS%:*}")
  else
    until (: < "/dev/tcp/${RAY_ADDRESS/://}") 2> /dev/null; do sleep 1; done
  fi
  "$@" "${role[@]}" < /dev/null &
  read -r
  kill "$!"
  wait "$!"
  rm -rf "$RAY_TMPDIR"
}
read -r ray_head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
ray_head="$(scontrol show node --oneliner "$ray_head" | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p')"
export RAY_ADDRESS="$ray_head:$(( @FIRST@ + SLURM_JOB_ID % @COUNT@ ))" RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH=@FOLDER@/ray-$SLURM_JOB_ID.token
export RAY_TMPDIR="/tmp/ray-$SLURM_JOB_ID"  # not Ray's usual one, in which others would find this cluster
export RAY_raylet_start_wait_time_s=150  # many nodes that read Python from one disk begin slowly
( umask 077; od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH" )
ray_log=@FOLDER@/logs/ray-$SLURM_JOB_ID.log
: > "$ray_log"
exec {ray}> >(srun @STEP@ >> "$ray_log" 2>&1)
ray_step=$!
for (( waited = 0; waited < @WAIT@; waited++ )); do
  (( $(grep -c 'Ray runtime started' "$ray_log") >= @NODES@ )) && break
  sleep 1
done
(( waited < @WAIT@ )) || echo "vfm-launch: Ray did not start on all nodes within @WAIT@ s, see $ray_log" >&2
"""

FINISH = r"""
exec {ray}>&-
wait "$ray_step"
rm -f "$RAY_AUTH_TOKEN_PATH"
"""


def begin(job: SlurmJob, enter: Sequence[str]) -> list[str]:
    """The lines before the working one.

    Args:
        enter: options of srun and words that lead into the job's container, quoted.
    """
    step = _on_each_node(job, enter, job.cpus_per_task, job.gpus_per_node)
    if job.cpu_nodes:
        more = _on_each_node(job, enter, job.cluster.cpus_per_cpu_node or 1, 0)
        step = f"--het-group=0 {step} \\\n  : --het-group=1 {more}"
    values = {"FIRST": _FIRST_PORT, "COUNT": _NUM_PORTS, "WAIT": _WAIT_S, "FOLDER": quote(str(job.folder)),
              "STEP": step, "NODES": job.nodes + job.cpu_nodes}  # fmt: skip
    return re.sub(r"@([A-Z]+)@", lambda match: str(values[match[1]]), _BEGIN).strip("\n").split("\n")


def _on_each_node(job: SlurmJob, enter: Sequence[str], cpus: int, gpus: int) -> str:
    """What follows srun, for nodes that are alike."""
    # Ray of the Python that runs the job; in a container, the one on its path.
    program = f"{quote(job.command[0])} -m ray.scripts.scripts" if "-m" in job.command else "ray"
    mpi = f" --mpi={quote(job.mpi)}" if job.mpi else ""
    size = f"--num-cpus={cpus} --num-gpus={gpus} --disable-usage-stats --block"
    lines = (f"--overlap --cpus-per-task={cpus}{mpi}", *enter, _FUNCTION, f"{program} start {size}")
    return " \\\n    ".join(lines)
