#!/bin/bash
# curation/clips: clips from films
#
# Run 0123456789ab, written by vfm-launch: the same recipe, cluster and code give the same text.
# Change those, not this file. What it makes, and how each attempt ended (launch/attempts.tsv), is in
#   /lustre/video/runs/dit

#SBATCH --job-name=clips
#SBATCH --comment="vfm 0123456789ab"

# 1 node, one process on each.
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --mem=0  # all that a node has
#SBATCH --exclusive  # shared with nobody

# Time limit of one attempt. USR1 arrives 420 s earlier, so that every process can save and exit;
# then this script restarts the job. (With `B:` before USR1, only this shell would get the signal.)
#SBATCH --time=4:00:00
#SBATCH --signal=USR1@420
#SBATCH --requeue  # if a node fails, Slurm restarts the job on others
#SBATCH --array=0-3  # each task has its own attempts

# One log for all attempts.
#SBATCH --output=/lustre/video/runs/dit/launch/logs/%x-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --chdir=/lustre/video

set -uo pipefail  # not -e: what follows a failure is decided at the end
trap : TERM USR1  # survive both: this shell still has to record how the job ended

# -- Variables: they follow from the kind of GPU and the layout; cluster.environment changes them.
export PYTHONUNBUFFERED=1            # the log keeps the last lines of a killed process
export PYTHONFAULTHANDLER=1          # a crash in native code prints the Python stack
export TOKENIZERS_PARALLELISM=false  # forked data workers cannot use its threads
export HF_HUB_OFFLINE=1              # weights and tokenizers are local folders
export PYTHONPATH=/lustre/video/runs/dit/launch/code${PYTHONPATH:+:$PYTHONPATH}  # the code as it was when the job was submitted

# -- The share of this task of the array.
case "$SLURM_ARRAY_TASK_ID" in
  0) own=(run_dir=/lustre/video/runs/dit/shards/0 shard=0/4) ;;
  1) own=(run_dir=/lustre/video/runs/dit/shards/1 shard=1/4) ;;
  2) own=(run_dir=/lustre/video/runs/dit/shards/2 shard=2/4) ;;
  3) own=(run_dir=/lustre/video/runs/dit/shards/3 shard=3/4) ;;
esac

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

# -- The work.
srun --export=ALL --cpus-per-task=64 --mpi=pmix \
    /opt/venv/bin/python -P -m nemo_vfm run /lustre/video/runs/dit/launch/recipe.yaml run_dir=/lustre/video/runs/dit "${own[@]}"
status=$?

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
      blamed="${hosts[BASH_REMATCH[1] / 1]:-}"
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
