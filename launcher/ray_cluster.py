# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A job in, the lines that begin a Ray cluster on its nodes, and those that end it, out."""

from launcher.job import SlurmJob
from launcher.quoting import quoted

#: Ray's processes must outlive the signals that ask the job to save: it still needs them to finish what it began.
_DEAF = """bash -c 'trap "" USR1 TERM; exec "$@"' ray"""
_FIRST_PORT, _NUM_PORTS = 25_000, 5_000  # below what systems give out by themselves, above those of rendezvous


def begin(job: SlurmJob, step: list[str]) -> list[str]:
    """The lines before the working one.

    Args:
        step: options of srun and words that every process of the job needs, such as its container; quoted.
    """
    enter = " ".join(step)
    size = f"--num-cpus={job.cpus_per_task} --num-gpus={job.gpus_per_node} --disable-usage-stats --block"
    lines = [
        "# -- A Ray cluster on the nodes of this job: a head on the first, a worker on each other. Nobody without the",
        "# token may use it. What it says is in ray.log beside the logs.",
        'read -r ray_head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        f"ray_port=$(( {_FIRST_PORT} + SLURM_JOB_ID % {_NUM_PORTS} ))",
        f"ray_log={quoted(f'{job.folder}/logs/ray.log')}",
        'export RAY_ADDRESS="$ray_head:$ray_port"',
        f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={quoted(f'{job.folder}/ray.token')}",
        '( umask 077; od -An -N32 -tx1 /dev/urandom | tr -d " \\n" > "$RAY_AUTH_TOKEN_PATH" )',
        f"srun --overlap --nodes=1 --ntasks=1 {enter} {_DEAF} \\",
        f'    ray start --head --port="$ray_port" --include-dashboard=false {size} >> "$ray_log" 2>&1 &',
        "ray=($!)",
        'until (: < "/dev/tcp/$ray_head/$ray_port") 2> /dev/null || (( ++waited > 120 )); do sleep 1; done',
    ]
    if job.nodes > 1:
        others = job.nodes - 1
        lines += [
            f"srun --overlap --relative=1 --nodes={others} --ntasks={others} {enter} {_DEAF} \\",
            f'    ray start --address="$RAY_ADDRESS" {size} >> "$ray_log" 2>&1 &',
            "ray+=($!)",
        ]
    return lines


def finish() -> list[str]:
    """The lines behind the working one: srun, asked to end, ends its processes on every node."""
    return [
        'kill "${ray[@]}" 2> /dev/null',
        'wait "${ray[@]}"',
        'rm -f "$RAY_AUTH_TOKEN_PATH"',
    ]
