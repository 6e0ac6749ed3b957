#!/bin/bash
# diffusion/dit_7b_8k: a DiT of 7 billion weights on sequences of 8K
#
# Run 0123456789ab, written by vfm-launch: the same recipe, cluster and code give the same text.
# Change those, not this file. What it makes, and how each attempt ended (launch/attempts.tsv), is in
#   /lustre/video/runs/dit

#SBATCH --job-name=dit
#SBATCH --comment="vfm 0123456789ab"
#SBATCH --account=video

# 8 nodes of 8 GPUs (h100), 8 processes on each.
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=14
#SBATCH --gpus-per-node=8
#SBATCH --mem=0  # all that a node has
#SBATCH --exclusive  # shared with nobody

# Time limit of one attempt. USR1 arrives 420 s earlier, so that every process can save and exit;
# then this script restarts the job. (With `B:` before USR1, only this shell would get the signal.)
#SBATCH --time=4:00:00
#SBATCH --signal=USR1@420
#SBATCH --requeue  # if a node fails, Slurm restarts the job on others

# One log for all attempts.
#SBATCH --output=/lustre/video/runs/dit/launch/logs/%x-%j.out
#SBATCH --open-mode=append
#SBATCH --chdir=/lustre/video

set -uo pipefail  # not -e: what follows a failure is decided at the end
trap : TERM USR1  # survive both: this shell still has to record how the job ended

# -- Variables: they follow from the kind of GPU and the layout; cluster.environment changes them.
export PYTHONUNBUFFERED=1                             # the log keeps the last lines of a killed process
export PYTHONFAULTHANDLER=1                           # a crash in native code prints the Python stack
export TOKENIZERS_PARALLELISM=false                   # forked data workers cannot use its threads
export HF_HUB_OFFLINE=1                               # weights and tokenizers are local folders
export OMP_NUM_THREADS=14                             # of a process: else each takes all the node's cores
export NCCL_DEBUG=WARN                                # NCCL says what it objects to, and nothing else
export PYTORCH_ALLOC_CONF=expandable_segments:True    # sizes change from step to step: fewer gaps
export CUDA_DEVICE_MAX_CONNECTIONS=8                  # weights are gathered while a block computes: 1 queue would end that
export NCCL_P2P_NET_CHUNKSIZE=2097152                 # stages on several nodes: activations in pieces of 2 MiB
export PYTHONNOUSERSITE=1                             # packages in your home were not installed for the image's Python
export TRITON_CACHE_DIR=/tmp/triton-0123456789ab      # a home that is not mounted is read-only
export PYTHONPATH=/lustre/video/runs/dit/launch/code  # the code as it was when the job was submitted

# -- Secrets: from files that only you can read, or from the shell that submitted. No value is written here.
missing=
unset WANDB_API_KEY; IFS= read -r WANDB_API_KEY < /lustre/video/.keys/wandb; export WANDB_API_KEY
[[ ${WANDB_API_KEY:+set} ]] || missing+=' WANDB_API_KEY'
[[ ${MLFLOW_TRACKING_TOKEN:+set} ]] || missing+=' MLFLOW_TRACKING_TOKEN'

# -- The state before this attempt, to see at its end whether it made progress.
run=/lustre/video/runs/dit
launch=/lustre/video/runs/dit/launch
job="$SLURM_JOB_ID"
[[ -v SLURM_ARRAY_TASK_ID ]] && job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"  # the bare number may be all the array
log="$(readlink "/proc/$$/fd/1")"
log_began="$(stat --format=%s "$log" 2> /dev/null || echo 0)"
said_of() {  # what squeue says of this job; a heterogeneous job has a line per part
  squeue --noheader --jobs="$job" --format="$1" | head -n 1
}
ends_at="$(said_of %e)"  # where nothing is said: not midnight, which an empty date is
ends_at="$(date --date="${ends_at:-unknown}" +%s 2> /dev/null || echo 0)"

newest_step() {  # of the finished checkpoints; -1 where there is none
  printf '%s\n' "$run"/{,*/,*/*/}checkpoints/step-*{/manifest.json,.ckpt} |
    sed -nE -e 's:^.*/step-([0-9]{8,18})(/manifest\.json|\.ckpt)$:\1:' -e 's/^0*([0-9]+)$/\1/p' |
    sort -n | tail -n 1 | grep . || echo -1
}
files_made() {  # below the run folder's own, by work that has no checkpoints
  find -H "$run" -mindepth 1 \( -name launch -o -name ranks -o -name '.*' \) -prune -o -type f -printf '%d\n' \
    2> /dev/null | grep -c -v '^1$'
}
# This job and those whose work it goes on with, as resubmitted.tsv says; what the attempts of all of them were counts.
mine=" $(awk -v job="$job" '{ before[$2] = $1 }
  END { for (; job != "" && n < 10000; n++) { printf "%s ", job; job = before[job] } }' \
  < <(cat "$launch/resubmitted.tsv" 2> /dev/null))"
attempts() { cat "$launch/attempts.tsv" 2> /dev/null; }
restarts_before="$(awk -F '\t' -v job="$job" -v mine="$mine" \
  '$2 != job && index(mine, " " $2 " ") { n++ } END { print n + 0 }' < <(attempts))"
note() {  # one line of attempts.tsv: status, kind, sentence, moved, blamed; at once, since other tasks write, too
  local line
  printf -v line '%s\t' "$(date --utc +%Y-%m-%dT%H:%M:%SZ)" "$job" \
    "$(( restarts_before + ${SLURM_RESTART_COUNT:-0} ))" \
    "$1" "$2" "$(newest_step)" \
    "$SLURM_JOB_NODELIST" "${3//[[:cntrl:]]/ }" "$4"
  [[ -z "$(tail --bytes=1 "$launch/attempts.tsv" 2> /dev/null)" ]] || line=$'\n'"$line"  # a full disk left half a line
  printf '%s%s\n' "$line" "$5" >> "$launch/attempts.tsv"
}

mark="$launch/attempt-$SLURM_JOB_ID"  # exists while an attempt runs, and is older than all that the attempt writes
if [[ -e $mark ]]; then
  down="$(sinfo --noheader --Node --nodes="$(< "$mark")" --states=down,drain,fail --format=%N | sort -u | paste -sd,)"
  SLURM_JOB_NODELIST="$(< "$mark")" SLURM_RESTART_COUNT="$(( ${SLURM_RESTART_COUNT:-1} - 1 ))" \
    note - "$([[ -n $down ]] && echo node_fault || echo unknown)" "it ended without a message" no "$down"
fi
printf '%s\n' "$SLURM_JOB_NODELIST" > "$mark"
# What the attempt before recorded: a large run folder takes long to scan, so that is done at the end only.
step_before="$(awk -F '\t' -v mine="$mine" \
  'index(mine, " " $2 " ") { step = $6 } END { print step == "" ? -1 : step }' < <(attempts))"
files_before="$(for one in $mine; do cat "$launch/files-$one" 2> /dev/null && break; done)"

# -- What the image lacks, installed once for all nodes, beside this script: cluster.container.setup.
read -r -d '' setup << 'SETUP'
"""Installs what a container's image lacks into a folder on the shared disk, with the image's own Python and pip.

A job's script holds this text, since nothing of ours is in the image: the standard library must do. The image is not
changed, and may be read-only. The folder is a virtual environment that sees the image's packages; it appears under its
name when it is complete. So of several jobs the first one makes it, and a job that is killed leaves no half of it.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

#: Compiled for the image's CUDA, and for one another: these must stay, or pip must fail.
KEPT = ("torch", "torchvision", "torchaudio", "triton", "transformer-engine", "flash-attn")
_PIN = re.compile(r"([\w.-]+)==\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*(\+[\w.]+)?", re.ASCII)


def main(target: Path, packages: Path, wanted: Sequence[str]) -> None:
    """Make the environment, unless it is there.

    Args:
        target: its folder.
        packages: a file with a line `name==version` for each package of the submission.
        wanted: requirements, as pip takes them.
    """
    if target.is_dir():
        return
    have = {_canonical_name(one.name): one.version for one in distributions() if one.name}
    if "torch" not in have:
        sys.exit(f"vfm-launch: cluster.container.setup needs an image with torch, and {sys.executable} has none")
    new = target.with_name(f"{target.name}.job-{os.environ.get('SLURM_JOB_ID', os.getpid())}")
    shutil.rmtree(new, ignore_errors=True)  # of an attempt that was killed
    venv.create(new, symlinks=True)
    (inside,) = new.glob("lib/python*/site-packages")
    image = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (inside / "image.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in image))
    pins = [line for line in packages.read_text().splitlines() if (pin := _PIN.fullmatch(line)) and
            _canonical_name(pin[1]) not in have]  # fmt: skip
    pins += [f"{name}=={have[name]}" for name in KEPT if name in have]
    (new / "constraints.txt").write_text("".join(f"{line}\n" for line in pins))
    (new / "tmp").mkdir()  # the image's own may be read-only
    command = [str(new / "bin/python"), "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir",
               "--constraint", str(new / "constraints.txt"), *wanted]  # fmt: skip
    # The words are of our own script; no shell reads them.
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(new / "tmp")}, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"vfm-launch: pip could not install what the image lacks, see above. Nodes without a network need "
                 f"PIP_NO_INDEX and PIP_FIND_LINKS in cluster.environment; {new} shows how far it got")  # fmt: skip
    shutil.rmtree(new / "tmp")
    try:
        new.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(new)  # another job was first


def _canonical_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
SETUP
if ! [[ -d /lustre/video/runs/dit/launch/environment-e08197e2f205 ]] && ! srun --export=ALL --nodes=1 --ntasks=1 --cpus-per-task=14 --mpi=pmix \
    '--container-image=registry.example.org#nvidia/pytorch:26.06-py3' \
    --container-mounts=/lustre/video:/lustre/video \
    --container-workdir=/lustre/video \
    --no-container-mount-home \
    --no-container-entrypoint \
    --container-env=PYTHONUNBUFFERED,PYTHONFAULTHANDLER,TOKENIZERS_PARALLELISM,HF_HUB_OFFLINE,OMP_NUM_THREADS,NCCL_DEBUG,PYTORCH_ALLOC_CONF,CUDA_DEVICE_MAX_CONNECTIONS,NCCL_P2P_NET_CHUNKSIZE,PYTHONNOUSERSITE,TRITON_CACHE_DIR,PYTHONPATH,WANDB_API_KEY,MLFLOW_TRACKING_TOKEN \
    python3 -s -P -c "$setup" \
    /lustre/video/runs/dit/launch/environment-e08197e2f205 \
    /lustre/video/runs/dit/launch/packages.txt \
    'av<19,>=14' \
    'torch<2.14,>=2.11'; then
  status=2
else
# -- What every node must have: cluster.node_check.
read -r -d '' check << 'CHECK'
failed() { echo "vfm-launch: the check of node $SLURMD_NODENAME failed: $1" >&2; exit 1; }
gpus=8 memory=0 disk=0 links=1
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
CHECK

# -- The work.
# A process that dies does not end the others at once (--kill-on-bad-exit=0): they find out whom
# they lost, say so, and leave; 300 s after the first has left, srun ends the rest.
# block:block gives neighbouring processes neighbouring cores, on the socket that their GPUs hang on.
if [[ $missing ]]; then
  echo "not set:$missing; export them before you submit, or name files in cluster.secrets" >&2
  status=2
else
  if ! srun --export=ALL --nodes=8 --ntasks=8 --ntasks-per-node=1 --cpus-per-task=1 --kill-on-bad-exit=0 --mpi=pmix bash -c "$check"; then
    status=70
  else
    srun --export=ALL --cpus-per-task=14 --label --kill-on-bad-exit=0 --wait=300 --distribution=block:block --mpi=pmix \
        '--container-image=registry.example.org#nvidia/pytorch:26.06-py3' \
        --container-mounts=/lustre/video:/lustre/video \
        --container-workdir=/lustre/video \
        --no-container-mount-home \
        --no-container-entrypoint \
        --container-env=PYTHONUNBUFFERED,PYTHONFAULTHANDLER,TOKENIZERS_PARALLELISM,HF_HUB_OFFLINE,OMP_NUM_THREADS,NCCL_DEBUG,PYTORCH_ALLOC_CONF,CUDA_DEVICE_MAX_CONNECTIONS,NCCL_P2P_NET_CHUNKSIZE,PYTHONNOUSERSITE,TRITON_CACHE_DIR,PYTHONPATH,WANDB_API_KEY,MLFLOW_TRACKING_TOKEN \
        /lustre/video/runs/dit/launch/environment-e08197e2f205/bin/python -P -m nemo_vfm run /lustre/video/runs/dit/launch/recipe.yaml run_dir=/lustre/video/runs/dit --trust our_package
    status=$?
  fi
fi
fi

trap '' TERM  # neither this shell nor what it calls from here on: a requeue ends, by SIGTERM, whatever the job runs

# -- How it ended. What the run says of itself goes before the status: srun hands on the highest of all tasks.
# Of its log only lines whose writer is known count: what the work prints is anybody's.
by_system='^((srun|slurmstepd[^ ]*|NVRM|([A-Z][a-z]+ +[0-9]+ [0-9:]+ [^ ]+ )?kernel): |[[] *[0-9]+[.][0-9]+[]] (NVRM|Out of memory|Memory cgroup out of memory|oom-kill):)'
heard="$(tail --bytes="+$((log_began + 1))" "$log" 2> /dev/null | tail --bytes=8000000 | tr '\r' '\n' |
  awk -v by_system="$by_system" '
  { task = "" }
  match($0, /^ *[0-9]+: /) { task = substr($0, 1, RLENGTH); $0 = substr($0, RLENGTH + 1) }
  { lines[task]++ }
  $0 ~ by_system && !(task != "" && /^srun: /) || /^vfm-launch: the check of node / { print }
  /^rank [0-9]+ / { rank[task] = $0 }
  /^[A-Za-z_][A-Za-z0-9_.]*(Error|Exception|Interrupt|Exit)(:|$)/ && before[task] ~ /^[ \t]/ ||
    /^unexpected: / || /^ *what\(\): / { died[task] = $0; at[task] = lines[task] }
  /^The traceback is in / { died[task] = before[task]; at[task] = lines[task] }
  { before[task] = $0 }
  END {
    for (task in rank) print rank[task]
    for (task in died) if (lines[task] - at[task] < 50) print died[task]
  }
')"
told=
[[ $run/status.json -nt $mark ]] && told="$(sed -n 's/^ "error": "\(.*\)",\{0,1\}$/\1/p' "$run/status.json")"
said="${told:-$heard}
$(grep -E "$by_system" <<< "$heard")"
first="$(sed -n 's/^srun: error: [^ ]*: tasks\{0,1\} 0[-,0-9]*: Exited with exit code \([123]\)$/\1/p' <<< "$heard")"
[[ $status == 69 && -n $first ]] && status="${first%%$'\n'*}"  # rank 0 failed by itself, the others only lost it
now="$(date +%s)"
near=far
(( ends_at > 0 && now >= ends_at - 510 )) && near=near
case "$status:$near:$said" in
  0:*:*) kind=ok ;;
  76:*:*) kind=next_phase ;;
  75:near:* | 138:near:* | 143:near:*) kind=time_limit ;;
  75:*:* | 138:*:* | 143:*:*) kind=preempted ;;
  130:*:*) kind=interrupted ;;
  3:*:*) kind=nothing_kept ;;
  [1-9]*:*:*'Node failure on'*) kind=node_fault ;;
  [1-9]*:*:*'DUE TO NODE FAILURE'*) kind=node_fault ;;
  [1-9]*:*:*'uncorrectable ECC'*) kind=node_fault ;;
  [1-9]*:*:*'GPU has fallen off the bus'*) kind=node_fault ;;
  [1-9]*:*:*'Communication connection failure'*) kind=node_fault ;;
  [1-9]*:*:*'Unable to contact slurmd'*) kind=node_fault ;;
  [1-9]*:*:*'vfm-launch: the check of node'*) kind=node_fault ;;
  [1-9]*:*:*'CUDA out of memory'*) kind=out_of_memory ;;
  [1-9]*:*:*'CUDA error: out of memory'*) kind=out_of_memory ;;
  [1-9]*:*:*MemoryError*) kind=out_of_memory ;;
  [1-9]*:*:*oom_kill*) kind=out_of_memory ;;
  [1-9]*:*:*oom-kill*) kind=out_of_memory ;;
  [1-9]*:*:*'OOM Killed'*) kind=out_of_memory ;;
  [1-9]*:*:*'Out Of Memory'*) kind=out_of_memory ;;
  [1-9]*:*:*'Out of memory: Killed'*) kind=out_of_memory ;;
  [1-9]*:*:*'cgroup out of memory'*) kind=out_of_memory ;;
  69:*:*'has sent no heartbeat'* | 1[2-9][0-9]:*:*'has sent no heartbeat'*) kind=hang ;;
  69:*:*'which wait for it, gave up'* | 1[2-9][0-9]:*:*'which wait for it, gave up'*) kind=hang ;;
  2:*:*'is not finite at batch'* | 69:*:*'is not finite at batch'*) kind=non_finite ;;
  2:*:* | 126:*:* | 127:*:*) kind=configuration ;;
  69:*:*' ended: UserError:'*) kind=configuration ;;
  69:*:*' ended: ValueError:'*) kind=configuration ;;
  69:*:*' ended: '*) kind=unknown ;;
  69:*:*'heartbeats have stopped'*) kind=lost_rank ;;
  69:*:*'timed out waiting for the others'*) kind=lost_rank ;;
  69:*:*'can no longer reach rank 0'*) kind=lost_rank ;;
  69:*:*'lost the rendezvous store'*) kind=lost_rank ;;
  1[2-9][0-9]:*:*) kind=lost_rank ;;
  *:*:*) kind=unknown ;;
esac

# -- Which node was at fault? Did this attempt make progress?
failed="$(sed -n -e 's/^srun: error: Node failure on \([^ ]*\).*/\1/p' \
  -e 's/^vfm-launch: the check of node \([^ ]*\) failed.*/\1/p' <<< "$heard" | head -n 1)"
told="${told:-$(grep -m 1 -o '^vfm-launch: the check of node .*' <<< "$heard")}"
killed="$(sed -n \
  's/^srun: error: \([^ ]*\): tasks\{0,1\} [-,0-9]*: \(Killed\|Aborted\|Segmentation fault\|Bus error\).*/\1/p' \
  <<< "$heard" | head -n 1)"
blamed=
case "$kind" in
  hang | lost_rank | node_fault)
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    blamed="${failed:-$killed}"
    if [[ $told =~ rank\ ([0-9]+)\ of && $told != *"timed out waiting"* && ($kind == hang || -z $blamed) ]]; then
      blamed="${hosts[BASH_REMATCH[1] / 8]:-}"
    fi
    [[ " ${hosts[*]} " == *" $blamed "* ]] || blamed=
    ;;
esac
before="$(awk -F '\t' -v mine="$mine" -v node="$blamed" 'index(mine, " " $2 " ") && $10 == node' < <(attempts))"
step="$(newest_step)"
moved=no
files=0
(( step < 0 )) && files="$(files_made)"
(( step > step_before || (step < 0 && files > ${files_before:-0}) )) && moved=yes
printf '%s\n' "$files" > "$launch/files-$job"

# -- Restarting: by a requeue, or as a new job that continues this one (resubmitted.tsv).
another=
of_job() { scontrol show job --oneliner "$job" | sed -n "s/.* $1=\([^ ]*\).*/\1/p" | head -n 1; }
submitted() {  # the number of what sbatch is given, without what this job has put into the environment
  (
    for name in $(compgen -e); do
      [[ $name == SLURM_CONF || ! $name =~ ^(SLURM|SLURMD|SBATCH|SRUN|SQUEUE|SINFO|PMI|PMI2|PMIX)_ ]] || unset "$name"
    done
    while [[ ${PYTHONPATH-} == "$launch/code"*:* ]]; do PYTHONPATH="${PYTHONPATH#*:}"; done
    exec sbatch --parsable "$@"
  ) | sed -n 's/^\([0-9][0-9]*\).*/\1/p' | tail -n 1
}
waiting_for() {  # jobs of the chain behind this number: their own, what they wait for, their script
  squeue --noheader --me --states=PENDING --format='%i %E %o' | grep -E "^[^ ]+ [^ ]*afterok:$1(_\*)?\("
}
resubmit() {  # this script, as a job that starts when this one has ended
  local log_name="${log##*/}" words number task=
  words=(--dependency="afterany:$job" --output="${launch//%/%%}/logs/${log_name//%/%%}")
  [[ -v SLURM_ARRAY_TASK_ID ]] && task="_$SLURM_ARRAY_TASK_ID" words+=(--array="$SLURM_ARRAY_TASK_ID")
  [[ -n $excluded ]] && words+=(--exclude="$excluded")
  number="$(submitted "${words[@]}" "$0")"
  if [[ -z $number ]]; then
    echo "vfm-launch: this cluster forbids requeue and sbatch from jobs;" \
      "resume from the last checkpoint with: vfm-launch retry ${launch%/launch}"
    exit "$status"
  fi
  another="$number$task"
  printf '%s\t%s\n' "$job" "$another" >> "$launch/resubmitted.tsv"
  echo "vfm-launch: resubmitted as job $another"
  hand_over "$number"
}
hand_over() {  # jobs that depend on this one depend on another instead
  local wanted="$1" root="${mine% }" waiting moved=no
  root="${root##* }"
  # Behind an array: for all of it, and for whatever goes on with one of its tasks.
  [[ $job == *_* ]] && wanted="$(awk -F '[\t_]' -v root="${root%%_*}" 'BEGIN { known[root]; all = root }
    $1 in known && !($3 in known) { known[$3]; all = all ":" $3 } END { print all }' "$launch/resubmitted.tsv")"
  while read -r waiting _; do
    if scontrol update JobId="${waiting%%_*}" Dependency="afterok:$wanted"; then
      moved=yes
    elif [[ $job != *_* ]]; then
      submit_behind "$job" "$1"
    fi
  done < <(waiting_for "${job%%_*}")
  [[ $job == *_* && $moved == yes ]] && status=0  # else those behind the array could never begin
}
submit_behind() {  # where no job may be changed: the chain behind one job once more, behind another
  local old="$1" new="$2" waiting file words number left=100
  while (( left-- )) && read -r waiting _ file < <(waiting_for "$old"); do
    words=(--dependency="afterok:$new" --kill-on-invalid-dep=yes)
    [[ $waiting =~ _\[([-0-9,%]+)\]$ ]] && words+=(--array="${BASH_REMATCH[1]}")
    number="$(submitted "${words[@]}" "$file")"
    [[ -n $number ]] || return
    printf '%s\t%s\n' "${waiting%%_*}" "$number" >> "$launch/resubmitted.tsv"
    old="${waiting%%_*}" new="$number"
  done
}

# -- What happens next.
state="$(said_of %T)"
by_hand='\*\*\* JOB [0-9]+ ON [^ ]+ CANCELLED AT [^ ]+ (DUE [Tt][Oo] SIGNAL.*)?\*\*\*'
if grep -q -E "^slurmstepd[^ ]*: error: $by_hand" <<< "$heard"; then
  kind=interrupted  # by scancel: where Slurm itself ends a job, it says DUE TO what
  told="cancelled; $told"
fi
noted=yes
note "$status" "$kind" "${told:0:500}" "$moved" "$blamed" || noted=no
rm -f "$mark"
stuck="$(awk -F '\t' -v mine="$mine" \
  'index(mine, " " $2 " ") { if ($9 == "yes") n = 0; else if ($5 != "preempted") n++ } END { print n + 0 }' \
  < <(attempts))"
echo "vfm-launch: $kind (status $status), newest checkpoint: step $step. ${told:0:500}"
case "$kind" in
  ok | next_phase) exit 0 ;;
  preempted | time_limit | hang | lost_rank | node_fault) ;;
  *) exit "$status" ;;
esac
if [[ $noted == no ]]; then
  echo "vfm-launch: not restarted: $launch/attempts.tsv cannot be written, so attempts cannot be counted." \
    "Fix that, then run vfm-launch retry."
  exit "$status"
fi
if (( stuck >= 3 )); then
  echo "vfm-launch: not restarted: 3 attempts in a row made no progress. See how they ended in" \
    "$launch/attempts.tsv, and this log; vfm-launch retry starts again."
  exit "$status"
fi
excluded="$(of_job ExcNodeList)"
[[ $excluded == "(null)" ]] && excluded=
# A node that failed, or that lost a rank for the second time, is excluded if enough nodes are left.
shut_out=
if [[ -n $blamed && ($kind == node_fault || -n $before) ]]; then
  left="$(sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION" --states=idle,allocated,mixed,completing \
    --format=%N | sort -u | grep -v -c -x -F "$blamed")"
  if (( left < SLURM_JOB_NUM_NODES )); then
    echo "vfm-launch: $blamed is not excluded, because only $left nodes would be left"
  else
    shut_out="$blamed" excluded="${excluded:+$excluded,}$blamed"
  fi
fi
for _ in {1..12}; do  # a controller that is being restarted says nothing for some minutes
  [[ -n $state ]] && break
  sleep 10
  state="$(said_of %T)"
done
[[ -n $state ]] || echo "vfm-launch: Slurm does not answer; resume with: vfm-launch retry ${launch%/launch}"
# Else Slurm has begun it again already, as it does where a node fails or a job is preempted, if it may.
if [[ $state =~ ^(RUNNING|SIGNALING)$ || $(of_job Requeue) == 0 ]] || (( ends_at > 0 && now >= ends_at )); then
  scontrol requeue "$job" || resubmit
fi  # after a requeue this shell has KillWait seconds
if [[ -n $shut_out ]]; then
  [[ -n $another ]] || scontrol update JobId="$job" ExcNodeList="$excluded" || shut_out=
  [[ -z $shut_out ]] || echo "vfm-launch: $shut_out is excluded from further attempts"
fi
exit "$status"
