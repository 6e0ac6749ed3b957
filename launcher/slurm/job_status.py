"""Reports the state of a launch's jobs: from Slurm while it remembers them, else from what they left in the folder.

No accounting is needed: Slurm forgets a job some minutes after its end, and its own line in attempts.tsv stays.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.slurm import slurm
from launcher.slurm.slurm import QueuedJob
from launcher.state.launch_folder import Attempt, KeptLaunch
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.storage.files import last_records, read_json
from nemo_vfm.core.types.job import DONE, STATUS

_MAX_BYTES = 4 << 20
_NOTHING_S = 1e-3  # a step's reading that takes less holds nobody up
_SLOWER = 1.1  # times as long: equal devices differ by a few per cent
SILENT_S = 60.0  # six heartbeats: worth saying, and no proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a run folder says; None where it says nothing."""

    state: str | None = None  #: of status.json
    error: str | None = None  #: what it ended with
    step: int | None = None  #: done
    total_steps: int | None = None  #: of the run
    step_s: float | None = None  #: mean seconds of the last steps
    loss: float | None = None  #: of the last step
    rates: Mapping[str, float]  #: work a second, by name
    checkpoint: int | None = None  #: step of the newest one
    checkpoint_age_s: float | None = None  #: how old that is
    silent_s: float | None = None  #: since the last heartbeat
    slowest: str = ""  #: on the rank whose data, or whose device, the others wait for; empty where none stands out
    elsewhere: Mapping[str, str]  #: what ranks do that do something else than rank 0, by rank

    @property
    def left_s(self) -> float | None:
        if self.step is None or self.total_steps is None or self.step_s is None or self.state != "running":
            return None
        return max(0, self.total_steps - self.step) * self.step_s


def progress(folder: Path, below: Path | None = None) -> Progress:
    """Look at a run; `below` is the folder of the step of a workflow that is of interest."""
    status: Any = {}
    with suppress(OSError, ValueError, RecursionError):
        status = read_json(folder / STATUS, _MAX_BYTES)
    status, now = status if isinstance(status, dict) else {}, datetime.now(UTC).timestamp()
    inner = below or folder
    last = next(last_records(inner / "metrics.jsonl"), {})
    checkpoint = None  # the newest one's step, and when it was written
    for path in reversed(checkpoint_names.list_checkpoints(inner / "checkpoints")):
        with suppress(OSError):  # it may just have been deleted
            checkpoint = checkpoint_names.step_of(path.name), path.stat().st_mtime
            break
    beat = _time(status.get("heartbeat"))
    rates = {name: _number(last.get(name)) for name in ("samples_per_s", "tokens_per_s", "mfu")}
    elsewhere = status.get("elsewhere") if status.get("state") == "running" else None
    return Progress(
        state=_text(status.get("state")), error=_text(status.get("error")),
        step=_int(status.get("step")) if _int(status.get("step")) is not None else _int(last.get("step")),
        total_steps=_int(status.get("total_steps")), step_s=_number(status.get("step_s")),
        loss=_number(last.get("loss")), rates={name: value for name, value in rates.items() if value is not None},
        checkpoint=checkpoint[0] if checkpoint else None, checkpoint_age_s=now - checkpoint[1] if checkpoint else None,
        silent_s=None if beat is None else max(0.0, now - beat), slowest=_slowest_rank(status),
        elsewhere={rank: text for rank, doing in elsewhere.items() if (text := _text(doing))}
        if isinstance(elsewhere, dict) else {},
    )  # fmt: skip


def _slowest_rank(status: Mapping[str, Any]) -> str:
    """Whose data, and whose device, the others wait for."""
    found = []
    for name, figure, least, sentence in (
        ("reads_longest", "seconds", _NOTHING_S, "rank {} is the slowest reader: {:.3g} s a step"),
        ("computes_slowest", "times", _SLOWER, "rank {} is {:.3g}x slower than the rest on the same matmul"),
    ):
        one = status.get(name) if status.get("state") == "running" else None
        rank, number = (_int(one.get("rank")), _number(one.get(figure))) if isinstance(one, dict) else (None, None)
        if rank is not None and number is not None and number >= least:
            found.append(sentence.format(rank, number))
    return "; ".join(found)


def _text(value: object) -> str | None:
    """One printable line: these files may be anybody's."""
    if not isinstance(value, str):
        return None
    return "".join(c if c.isprintable() else " " for c in value[:2000]).strip()


def _int(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 10**18 else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _time(value: object) -> float | None:
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    return None


PATIENCE_S = 600.0  #: that whoever waits for a job goes on asking while Slurm refuses: controllers are restarted


def live_jobs(kept: KeptLaunch) -> dict[str, QueuedJob]:
    """Jobs and tasks of arrays by their numbers.

    A job notes before its end which other goes on with its work: so the folder is read once more after each question.
    """
    while True:
        ids = kept.slurm_ids()
        found = slurm.squeue(ids)
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
        return self.state in ("done", "phase done")


def queue_of(kept: KeptLaunch) -> tuple[dict[str, QueuedJob], str]:
    """What Slurm knows of a launch's jobs; where it does not answer, why."""
    ids = kept.slurm_ids()
    if not ids:
        return {}, ""
    if not slurm.is_here():
        return {}, "no Slurm on this machine, so this is read from the folder"
    try:
        return live_jobs(kept), ""
    except UserError as error:
        return {}, f"Slurm does not answer ({error}), so this is read from the folder"


def states(kept: KeptLaunch, queue: Mapping[str, QueuedJob]) -> list[JobState]:
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
    kept: KeptLaunch, queue: Mapping[str, QueuedJob], attempts: Sequence[Attempt]
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


def silence(found: Progress) -> str:
    """A sentence where a run that says it is running gives no sign of life; else empty."""
    if found.state != "running" or found.silent_s is None or found.silent_s < SILENT_S:
        return ""
    return f"no heartbeat for {found.silent_s:.0f} s, expected every 10 s"


def _state(
    kept: KeptLaunch, job: Mapping[str, Any], queue: Mapping[str, QueuedJob], attempts: Sequence[Attempt]
) -> JobState:
    numbers = kept.numbers(job)
    number = "" if not numbers else numbers[0] if job["array"] else numbers[-1]
    ever = kept.all_numbers(job)
    mine = [one for one in attempts if one.job.partition("_")[0] in ever]
    found = [one for one in queue.values() if one.array in (numbers if job["array"] else numbers[-1:])]
    live = [one for one in found if one.waits_or_runs]
    ended, good = _last_attempt(mine), {one.job.partition("_")[2] for one in mine if one.kind in GOOD}
    # Tasks without a good end, under whatever number they were tried.
    left = tuple(number for number in range(job["array"]) if str(number) not in good)
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


def _last_attempt(attempts: Sequence[Attempt]) -> Attempt | None:
    """Of an array the last that was not well, so that one good task hides none."""
    last = {one.job.partition("_")[2]: one for one in attempts}
    return next((one for one in reversed(last.values()) if one.kind not in GOOD), attempts[-1] if attempts else None)


def _waiting(live: Sequence[QueuedJob], ended: Attempt | None) -> tuple[str, str]:
    first = next((one for one in live if one.state == "RUNNING"), live[0])
    if first.state == "RUNNING":
        return "running", f"on {first.nodes} since {first.begins}, {first.left} left of its time"
    if ended is not None:
        return "waiting", f"to resume after {ended.kind} ({_reason(first)})"
    return "waiting", _reason(first)


def _reason(job: QueuedJob) -> str:
    words = {"Dependency": "for the job before it", "Priority": "others come first", "Resources": "for free nodes",
             "BeginTime": f"until {job.begins}", "None": "just submitted",
             "DependencyNeverSatisfied": "for ever: the job before it failed"}  # fmt: skip
    return words.get(job.reason, job.reason if job.state == "PENDING" else job.state)


def _over(numbers: Sequence[str], ended: Attempt | None, last: QueuedJob | None) -> tuple[str, str]:
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
    return bool(job["step"]) and not job["phase"] and not job["array"] and (run_dir / job["step"] / DONE).is_file()


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
