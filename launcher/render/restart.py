"""Renders the lines of a script that restart its job: by a requeue, or by submitting the same script once more.

Tried with Slurm 22.05: while a job runs, `$0` is its script as submitted. So the resubmitted script is the same byte
for byte. A task of an array that is submitted again is an array of its own, of one task with the same number. Jobs that
wait for `afterok` of an array wait for all its tasks, so a task whose work continues elsewhere must succeed.
"""

from launcher.render.job import SlurmJob

RESUBMITTED = "resubmitted.tsv"  #: a line for each job that goes on with the work of another: that one, this one

_FUNCTIONS = r"""
# -- Restarting: by a requeue, or as a new job that continues this one (@RESUBMITTED@).
another=
of_job() { scontrol show job --oneliner "$job" | sed -n "s/.* $1=\([^ ]*\).*/\1/p" | head -n 1; }
submitted() {  # the number of what sbatch is given, without what this job has put into the environment
  (
    for name in $(compgen -e); do
      [[ $name == SLURM_CONF || ! $name =~ ^(SLURM|SLURMD|SBATCH|SRUN|SQUEUE|SINFO|PMI|PMI2|PMIX)_ ]] || unset "$name"
    done
@CODE@    exec sbatch --parsable "$@"
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
  printf '%s\t%s\n' "$job" "$another" >> "$launch/@RESUBMITTED@"
  echo "vfm-launch: resubmitted as job $another"
  hand_over "$number"
}
hand_over() {  # jobs that depend on this one depend on another instead
  local wanted="$1" root="${mine% }" waiting moved=no
  root="${root##* }"
  # Behind an array: for all of it, and for whatever goes on with one of its tasks.
  [[ $job == *_* ]] && wanted="$(awk -F '[\t_]' -v root="${root%%_*}" 'BEGIN { known[root]; all = root }
    $1 in known && !($3 in known) { known[$3]; all = all ":" $3 } END { print all }' "$launch/@RESUBMITTED@")"
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
    printf '%s\t%s\n' "${waiting%%_*}" "$number" >> "$launch/@RESUBMITTED@"
    old="${waiting%%_*}" new="$number"
  done
}
"""

#: The script puts its code first each time, so that it would stand there once more for each job.
_CODE = r"""
    while [[ ${PYTHONPATH-} == "$launch/code"*:* ]]; do PYTHONPATH="${PYTHONPATH#*:}"; done
"""

_TEXT = r"""
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
  @WAY@
fi  # after a requeue this shell has KillWait seconds
if [[ -n $shut_out ]]; then
  [[ -n $another ]] || scontrol update JobId="$job" ExcNodeList="$excluded" || shut_out=
  [[ -z $shut_out ]] || echo "vfm-launch: $shut_out is excluded from further attempts"
fi
"""


def functions(job: SlurmJob) -> str:
    """What the lines of `begin_again` call."""
    code = _CODE.lstrip("\n") if job.module_path else ""
    return _FUNCTIONS.replace("@CODE@", code).replace("@RESUBMITTED@", RESUBMITTED).strip("\n")


def begin_again(job: SlurmJob) -> str:
    """The lines that do it; they expect `$blamed`, `$before`, `$kind` and `$state`."""
    way = {"requeue": 'scontrol requeue "$job" || resubmit', "resubmit": "resubmit"}[job.cluster.restart]
    return _TEXT.replace("@WAY@", way).strip("\n")
