"""Renders the lines of a batch script before and after the work: what is kept of an attempt, and what follows it.

Slurm 22.05, tried: a script that asks for its own requeue is sent SIGTERM at once, as is whatever it runs, and SIGKILL
after KillWait. So it has some seconds left, in which its job counts as pending and accepts a list of excluded nodes. A
cancelled job would come back, too, if it were requeued. So a job is only requeued while it runs, or after its time
limit.

A job goes on by a requeue, or by submitting the same script once more: while a job runs, `$0` is its script as
submitted, byte for byte. A task of an array that is submitted again is an array of its own, of one task with the same
number. Jobs that wait for `afterok` of an array wait for all its tasks, so a task whose work continues elsewhere must
succeed.
"""

from collections.abc import Mapping

from launcher.render.exit_policy import KINDS, SYSTEM, WORDS, branches, names
from launcher.render.job import SlurmJob
from launcher.render.quoting import quote
from nemo_vfm.core.storage.checkpoint_names import FINISHED

RESUBMITTED = "resubmitted.tsv"  #: a line for each job that goes on with the work of another: that one, this one

ATTEMPTS = "attempts.tsv"
#: Of attempts.tsv, in order: `moved` is yes where the attempt got further, `blamed` the node of the rank that was lost.
COLUMNS = ("time", "job", "restart", "status", "kind", "step", "nodes", "sentence", "moved", "blamed")
_EARLY_S = 90  # Slurm may signal up to a minute before the lead that was asked for; the rest is for the save

_PROLOGUE = r"""
# -- The state before this attempt, to see at its end whether it made progress.
@RUN@
launch=@LAUNCH@
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
  printf '%s\n' @WORK@/{,*/,*/*/}checkpoints/step-*{/manifest.json,.ckpt} |
    sed -nE -e 's:^.*/@FINISHED@$:\1:' -e 's/^0*([0-9]+)$/\1/p' |
    sort -n | tail -n 1 | grep . || echo -1
}
files_made() {  # below the run folder's own, by work that has no checkpoints
  find -H "$run" -mindepth 1 \( -name launch -o -name ranks -o -name '.*' \) -prune -o -type f -printf '%d\n' \
    2> /dev/null | grep -c -v '^1$'
}
# This job and those whose work it goes on with, as @RESUBMITTED@ says; what the attempts of all of them were counts.
mine=" $(awk -v job="$job" '{ before[$2] = $1 }
  END { for (; job != "" && n < 10000; n++) { printf "%s ", job; job = before[job] } }' \
  < <(cat "$launch/@RESUBMITTED@" 2> /dev/null))"
attempts() { cat "$launch/@ATTEMPTS@" 2> /dev/null; }
restarts_before="$(awk -F '\t' -v job="$job" -v mine="$mine" \
  '$2 != job && index(mine, " " $2 " ") { n++ } END { print n + 0 }' < <(attempts))"
note() {  # one line of attempts.tsv: status, kind, sentence, moved, blamed; at once, since other tasks write, too
  local line
  printf -v line '%s\t' "$(date --utc +%Y-%m-%dT%H:%M:%SZ)" "$job" \
    "$(( restarts_before + ${SLURM_RESTART_COUNT:-0} ))" \
    "$1" "$2" "$(newest_step)" \
    "$SLURM_JOB_NODELIST" "${3//[[:cntrl:]]/ }" "$4"
  [[ -z "$(tail --bytes=1 "$launch/@ATTEMPTS@" 2> /dev/null)" ]] || line=$'\n'"$line"  # a full disk left half a line
  printf '%s%s\n' "$line" "$5" >> "$launch/@ATTEMPTS@"
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
"""

_EPILOGUE = r"""
trap '' TERM  # neither this shell nor what it calls from here on: a requeue ends, by SIGTERM, whatever the job runs

# -- How it ended. What the run says of itself goes before the status: srun hands on the highest of all tasks.
# Of its log only lines whose writer is known count: what the work prints is anybody's.
by_system='@SYSTEM@'
heard="$(tail --bytes="+$((log_began + 1))" "$log" 2> /dev/null | tail --bytes=8000000 | tr '\r' '\n' |
  awk -v by_system="$by_system" '@WORDS@')"
told=
[[ $run/status.json -nt $mark ]] && told="$(sed -n 's/^ "error": "\(.*\)",\{0,1\}$/\1/p' "$run/status.json")"
said="${told:-$heard}
$(grep -E "$by_system" <<< "$heard")"
first="$(sed -n 's/^srun: error: [^ ]*: tasks\{0,1\} 0[-,0-9]*: Exited with exit code \([123]\)$/\1/p' <<< "$heard")"
[[ $status == 69 && -n $first ]] && status="${first%%$'\n'*}"  # rank 0 failed by itself, the others only lost it
now="$(date +%s)"
near=far
(( ends_at > 0 && now >= ends_at - @EARLY@ )) && near=near
case "$status:$near:$said" in
@BRANCHES@
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
  @BLAMING@)
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    blamed="${failed:-$killed}"
    if [[ $told =~ rank\ ([0-9]+)\ of && $told != *"timed out waiting"* && ($kind == hang || -z $blamed) ]]; then
      blamed="${hosts[BASH_REMATCH[1] / @TASKS@]:-}"
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

@FUNCTIONS@

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
  @GOOD@) exit 0 ;;
  @AGAIN@) ;;
  *) exit "$status" ;;
esac
if [[ $noted == no ]]; then
  echo "vfm-launch: not restarted: $launch/@ATTEMPTS@ cannot be written, so attempts cannot be counted." \
    "Fix that, then run vfm-launch retry."
  exit "$status"
fi
if (( stuck >= @MOST@ )); then
  echo "vfm-launch: not restarted: @MOST@ attempts in a row made no progress. See how they ended in" \
    "$launch/@ATTEMPTS@, and this log; vfm-launch retry starts again."
  exit "$status"
fi
@BEGIN_AGAIN@
exit "$status"
"""


def prologue(job: SlurmJob) -> str:
    """What goes before the working line; each run of a sweep has set `run` already."""
    run = "# run= stands above, for each task" if job.task_runs else f"run={quote(str(job.run_dir))}"
    work = f'"$run"/{quote(job.step)}' if job.step else '"$run"'
    return _fill(_PROLOGUE, {"RUN": run, "LAUNCH": quote(str(job.folder)), "WORK": work, "FINISHED": FINISHED,
                             "ATTEMPTS": ATTEMPTS, "RESUBMITTED": RESUBMITTED})  # fmt: skip


def epilogue(job: SlurmJob) -> str:
    """What goes behind it; it expects the exit status in `$status`, and SIGTERM trapped."""
    good = [KINDS["ok"], KINDS["next_phase"]]
    again = [kind for kind in KINDS.values() if kind.again]
    blaming = [kind for kind in KINDS.values() if kind.blames_node]
    way = {"requeue": 'scontrol requeue "$job" || resubmit', "resubmit": "resubmit"}[job.cluster.restart]
    code = _CODE.lstrip("\n") if job.module_path else ""
    return _fill(_EPILOGUE, {
        "WORDS": WORDS, "SYSTEM": SYSTEM,
        "BRANCHES": branches(), "EARLY": str(job.lead_s + _EARLY_S), "TASKS": str(job.tasks_per_node),
        "MOST": str(job.max_restarts), "ATTEMPTS": ATTEMPTS, "GOOD": names(good), "AGAIN": names(again),
        "BLAMING": names(blaming), "BEGIN_AGAIN": _BEGIN_AGAIN.replace("@WAY@", way).strip("\n"),
        "FUNCTIONS": _FUNCTIONS.replace("@CODE@", code).replace("@RESUBMITTED@", RESUBMITTED).strip("\n"),
    })  # fmt: skip


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text.strip("\n") + "\n"


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

#: Expects `$blamed`, `$before`, `$kind` and `$state`, and calls `_FUNCTIONS`.
_BEGIN_AGAIN = r"""
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
