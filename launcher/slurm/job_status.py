"""Reports the state of a launch's jobs: from Slurm while it remembers them, else from what they left in the folder.

No accounting is needed: Slurm forgets a job some minutes after its end, and its own line in attempts.tsv stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.slurm import slurm
from launcher.slurm.slurm import Queued
from launcher.state.launch_folder import Attempt, KeptLaunch
from launcher.state.progress import SILENT_S, Progress, progress
from nemo_vfm.core.errors import UserError

PATIENCE_S = 600.0  #: that whoever waits for a job goes on asking while Slurm refuses: controllers are restarted


def queued(kept: KeptLaunch) -> dict[str, Queued]:
    """Jobs and tasks of arrays by their numbers.

    A job notes before its end which other goes on with its work: so the folder is read once more after each question.
    """
    while True:
        ids = kept.slurm_ids()
        found = slurm.queued(ids)
        kept.look_again()
        if kept.slurm_ids() == ids:
            return found


GOOD = ("ok", "next_phase")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """One job of a launch."""

    name: str  #: of the job
    number: str  #: Slurm's, the latest; empty where it was never submitted
    state: str  #: a word: done, running, waiting, or how it ended
    more: str = ""  #: why, where or since when
    live: bool = False  #: whether it waits or runs
    ended: Attempt | None = None  #: its last attempt, if one has ended
    left: tuple[int, ...] = ()  #: tasks of an array that are not done

    @property
    def done(self) -> bool:
        """Whether nothing is left of it to do."""
        return self.state in ("done", "phase done")


def queue_of(kept: KeptLaunch) -> tuple[dict[str, Queued], str]:
    """What Slurm knows of a launch's jobs; where it does not answer, why."""
    ids = kept.slurm_ids()
    if not ids:
        return {}, ""
    if not slurm.is_here():
        return {}, "no Slurm on this machine, so this is read from the folder"
    try:
        return queued(kept), ""
    except UserError as error:
        return {}, f"Slurm does not answer ({error}), so this is read from the folder"


def states(kept: KeptLaunch, queue: Mapping[str, Queued]) -> list[JobState]:
    """Each job, in order."""
    attempts = kept.attempts()
    if kept.is_local:
        return [_state_here(kept)]
    return [_state(kept, job, queue, attempts) for job in kept.jobs]


def looked_at(kept: KeptLaunch, name: str) -> Progress:
    """How far the work of one job is."""
    step = next((job["step"] for job in kept.jobs if job["name"] == name), "")
    return progress(kept.run_dir, kept.run_dir / step if step else None)


def run_states(
    kept: KeptLaunch, queue: Mapping[str, Queued], attempts: Sequence[Attempt]
) -> list[tuple[str, str, Progress]]:
    """Of a sweep, each run: its name, a word on it, and how far it is."""
    (job,) = kept.jobs
    numbers = kept.all_numbers(job)
    mine = [one for one in attempts if one.job.partition("_")[0] in numbers]
    last = {one.job.partition("_")[2]: one for one in mine}
    live = {one.id.partition("_")[2]: one for one in queue.values() if one.array in numbers and one.waits_or_runs}
    found = []
    for number, name in enumerate(kept.runs):
        at, queued_one, ended = progress(kept.run_dir / name), live.get(str(number)), last.get(str(number))
        if queued_one is not None:
            word = "running" if queued_one.state == "RUNNING" else "waiting"
        elif ended is not None:
            word = "done" if ended.kind in GOOD else ended.kind
        else:
            word = at.state or "not begun"
        found.append((name, word, at))
    return found


def silent(found: Progress) -> str:
    """A sentence where a run that says it is running gives no sign of life; else empty."""
    if found.state != "running" or found.silent_s is None or found.silent_s < SILENT_S:
        return ""
    return f"no heartbeat for {found.silent_s:.0f} s, expected every 10 s"


def _state(
    kept: KeptLaunch, job: Mapping[str, Any], queue: Mapping[str, Queued], attempts: Sequence[Attempt]
) -> JobState:
    numbers = kept.numbers(job)
    number = "" if not numbers else numbers[0] if job["array"] else numbers[-1]
    ever = kept.all_numbers(job)
    mine = [one for one in attempts if one.job.partition("_")[0] in ever]
    found = [one for one in queue.values() if one.array in (numbers if job["array"] else numbers[-1:])]
    live = [one for one in found if one.waits_or_runs]
    ended, left = _last(mine), _left(job, mine)
    if number and job.get("cancelled") == job["slurm"][-1] and not step_done(kept.run_dir, job):
        state, more = "cancelled", "it is still ending" if live else ""
    elif live:
        state, more = _waiting(live, ended)
    elif step_done(kept.run_dir, job) or (job["array"] and not left):
        state, more = "done", ""
    else:
        state, more = _over(numbers if job["array"] else numbers[-1:], ended, found[0] if found else None)
    counted = [f"{job['array'] - len(left)} of {job['array']} tasks are done"] if job["array"] else []
    return JobState(name=job["name"], number=number, state=state, more="; ".join(filter(None, [*counted, more])),
                    live=bool(live), ended=ended, left=left)  # fmt: skip


def _last(attempts: Sequence[Attempt]) -> Attempt | None:
    """Of an array the last that was not well, so that one good task hides none."""
    last = {one.job.partition("_")[2]: one for one in attempts}
    return next((one for one in reversed(last.values()) if one.kind not in GOOD), attempts[-1] if attempts else None)


def _left(job: Mapping[str, Any], attempts: Sequence[Attempt]) -> tuple[int, ...]:
    """Tasks without a good end, under whatever number they were tried."""
    good = {one.job.partition("_")[2] for one in attempts if one.kind in GOOD}
    return tuple(number for number in range(job["array"]) if str(number) not in good)


def _waiting(live: Sequence[Queued], ended: Attempt | None) -> tuple[str, str]:
    first = next((one for one in live if one.state == "RUNNING"), live[0])
    if first.state == "RUNNING":
        return "running", f"on {first.nodes} since {first.begins}, {first.left} left of its time"
    if ended is not None:
        return "waiting", f"to resume after {ended.kind} ({_reason(first)})"
    return "waiting", _reason(first)


def _reason(job: Queued) -> str:
    words = {"Dependency": "for the job before it", "Priority": "others come first", "Resources": "for free nodes",
             "BeginTime": f"until {job.begins}", "None": "just submitted",
             "DependencyNeverSatisfied": "for ever: the job before it failed"}  # fmt: skip
    return words.get(job.reason, job.reason if job.state == "PENDING" else job.state)


def _over(numbers: Sequence[str], ended: Attempt | None, last: Queued | None) -> tuple[str, str]:
    """Of a job that is not in the queue any more, under any of these numbers."""
    if not numbers:
        return "not submitted", ""
    if ended is not None and ended.job.partition("_")[0] in numbers:
        word = {"ok": "done", "next_phase": "phase done"}.get(ended.kind, ended.kind)
        return word, "" if ended.kind in GOOD else ended.sentence
    if last is None:
        return "not begun", "it is not in the queue and has no line in attempts.tsv"
    if last.state == "CANCELLED" and last.reason in ("Dependency", "DependencyNeverSatisfied"):
        return last.state.lower(), "the job before it failed"
    return last.state.lower(), "" if last.reason == "None" else last.reason


def step_done(run_dir: Path, job: Mapping[str, Any]) -> bool:
    """Whether a step of a workflow has left its mark; of a job that is all of a recipe, its attempts tell."""
    return (
        bool(job["step"]) and not job["phase"] and not job["array"] and (run_dir / job["step"] / "done.json").is_file()
    )


def _state_here(kept: KeptLaunch) -> JobState:
    """A launch without a queue; the runs of a sweep follow one another."""
    if not kept.runs:
        at = progress(kept.run_dir)
        return JobState(name="here", number="", state=at.state or "not begun", more=at.error or "",
                        live=at.state == "running")  # fmt: skip
    found = [progress(kept.run_dir / name).state for name in kept.runs]
    done, running = found.count("done"), "running" in found
    state = "running" if running else "done" if done == len(found) else "not begun" if not any(found) else "failed"
    return JobState(name="here", number="", state=state, more=f"{done} of {len(found)} runs are done", live=running)
