"""Runs named steps as one job: each step runs in its own folder, is skipped when done, and resumed when not.

A step's folder holds `started.json`, written before anything else, and `done.json`, written after everything else. Both
name what the step was asked for (its part of the recipe) and what came before it (the steps above it and the seed).
"""

import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from nemo_vfm.core import preemption, progress
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.recipe_keys import is_inert
from nemo_vfm.core.secret import conceal, conceal_names
from nemo_vfm.core.storage.files import read_json, sha256_text, write_json
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.core.types.announcements import announce
from nemo_vfm.core.types.job import LAUNCH, PARTS, Job, MultiRankJob, Needs, Outcome, Run, needs_of
from nemo_vfm.core.types.json_value import Json

STARTED, DONE = "started.json", "done.json"
REPLACED = "_replaced"  #: folder of what older versions of a step left
_MARKER_BYTES = 64 << 20
_MARKER_HELP = "delete it to run the step again, or choose another run_dir"
_NAME = re.compile(r"[A-Za-z][\w-]{0,99}")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a folder's content answers to.

    Args:
        before: a hash of everything that came before: the seed, and every earlier step.
        own: a hash of the step's own part of the recipe.
    """

    before: str
    own: str

    @classmethod
    def of(cls, run: Run, before: str = "") -> "Ask":
        """Of a run's settings, inert keys left out."""
        own = json.dumps(_deciding(run.settings))
        return cls(before or sha256_text(f"seed {run.seed}"), sha256_text(own))

    def after(self) -> str:
        """What comes before the next step."""
        return sha256_text(self.before + self.own)


class Workflow:
    """Steps that run one after the other, each in a folder of its name.

    Args:
        steps: the jobs, in order. A step reads what earlier ones wrote: `${run_dir}/<step>/...`.
        input: where the user's own data lies; steps refer to it as `${input}`. None where there is none.
    """

    def __init__(self, *, steps: Mapping[str, Job], input: Place | None = None) -> None:
        if not steps:
            raise ValueError("a workflow needs at least one step")
        for name in steps:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"a step's name is also its folder: at most 100 letters, digits, _ "
                    f"and -, got {name[:100]!r}{' and more' * (len(name) > 100)}"
                )
            if name in (LAUNCH, PARTS):
                raise ValueError(f"no step may be called {name}: this folder is reserved for the launcher or for parts")
        self.steps, self.input = dict(steps), None if input is None else place(input)

    def run(self, run: Run) -> Outcome:
        """Run what is not done.

        Returns:
            The figures of every step as `<step>/<figure>`.
        """
        return _together({one.name: one.perform() for one in self._turns(run)})

    def _turns(self, run: Run) -> "Iterator[Turn]":
        before = run.before or sha256_text(f"seed {run.seed}")
        for number, (name, job) in enumerate(self.steps.items(), 1):
            step = replace(run.step(name), before=before)
            ask = Ask.of(step, before)
            ends_run = number == len(self.steps) and not run.before
            yield Turn(name, job, step, ask, f"[{number}/{len(self.steps)}] {name}", ends_run)
            before = ask.after()

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`: what its widest step needs. The other steps are rank 0's alone."""
        steps = [needs_of(job) for job in self.steps.values()]
        return Needs(
            ranks=max(one.ranks for one in steps), whole_nodes=max(one.whole_nodes for one in steps),
            degrees=max((one.degrees for one in steps), key=lambda degrees: prod(degrees.values())),
            engine=max((one.engine for one in steps), key=("", "torch", "megatron").index),
            ray=any(one.ray for one in steps),
        )  # fmt: skip

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`: every step that is spread at all is spread over all ranks.

        Raises:
            ValueError: one needs another number.
        """
        for name, job in self.steps.items():
            if isinstance(job, MultiRankJob) and needs_of(job).ranks > 1:
                try:
                    job.require(num_ranks)
                except ValueError as error:
                    raise ValueError(f"step {name}: {error}") from error

    def job_in(self, *names: str) -> Job:
        """The job of a step, or of a step of a step."""
        job = self.steps[names[0]]
        return job.job_in(*names[1:]) if isinstance(job, Workflow) and len(names) > 1 else job


class OneStep(Workflow):
    """One step of a workflow, whose earlier ones are done already: each may have a machine of its own.

    Args:
        workflow: the whole.
        name: of the step.

    Raises:
        UserError: it has no such step.
    """

    def __init__(self, workflow: Workflow, name: str) -> None:
        if name not in workflow.steps:
            raise UserError(f"there is no step {name}; the recipe has {', '.join(workflow.steps)}")
        super().__init__(steps=workflow.steps, input=workflow.input)
        self.name, self._job = name, workflow.steps[name]

    def run(self, run: Run) -> Outcome:
        """Run it where it is not done.

        Raises:
            UserError: an earlier step is not done, or was done otherwise.
        """
        return replace(self.turn(run), ends_run=True).perform()

    def turn(self, run: Run) -> "Turn":
        """This step as it is asked for, all before it being done.

        Raises:
            UserError: an earlier step is not done, or was done otherwise.
        """
        for turn in self._turns(run):
            if turn.name == self.name:
                return turn
            if not turn.is_done():
                raise UserError(f"step {self.name} comes after {turn.name}, which is not done in {turn.run.folder} in "
                                f"the form of this recipe; run that step first, or all of them")  # fmt: skip
        raise AssertionError(f"no step {self.name}")

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`: of this step alone."""
        return needs_of(self._job, num_gpus=num_gpus, folder=None if folder is None else folder / self.name)

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`."""
        Workflow(steps={self.name: self._job}).require(num_ranks)


@dataclass(frozen=True, slots=True)
class Turn:
    """A step whose turn it is, what it is asked for, and what to call it.

    Args:
        ends_run: nothing comes after it in the run.
    """

    name: str
    job: Job
    run: Run
    ask: Ask
    title: str
    ends_run: bool

    def perform(self) -> Outcome:
        """Run it, unless it is done."""
        return perform(self.job, self.run, self.ask, title=self.title, ends_run=self.ends_run)

    def is_done(self) -> bool:
        """Whether it has done just this before."""
        if isinstance(self.job, Workflow):
            return all(turn.is_done() for turn in self.job._turns(self.run))
        return _done(self.run.folder, self.ask) is not None


def unfinished(job: Job, run: Run) -> list[str]:
    """How the addresses begin of what is still to be done: `steps.NAME.` for each step; nothing for all of a job."""
    if not isinstance(job, Workflow):
        return [] if _done(run.folder, Ask.of(run)) else [""]
    turns = [turn for turn in job._turns(run) if not isinstance(job, OneStep) or turn.name == job.name]
    return [f"steps.{turn.name}." for turn in turns if not turn.is_done()]


def perform(job: Job, run: Run, ask: Ask, *, title: str, ends_run: bool, set_aside: bool = True) -> Outcome:
    """Run a job in its folder unless it has done just this before.

    Args:
        title: what to call it in messages.
        ends_run: its summary is the run's, which is printed as a result and so not logged, too.
        set_aside: move away a folder whose predecessors were others; else go on in it.
    """
    if isinstance(job, Workflow):  # it marks its steps one by one, so that one that was deleted is made again
        return job.run(run)
    if done := _done(run.folder, ask):
        info(f"{title}: done earlier: {done.summary}")
        return done
    if urgency := preemption.urgency():  # it came while the step before took its last
        raise preemption.stopped(urgency, f"before {title}")
    resume = _prepare(run.folder, ask, title, set_aside)
    info(f"{title}: {'resumes' if resume else 'starts'}")
    progress.forget()
    began, before_s = time.monotonic(), (_start_record(run.folder) or {}).get("seconds", 0.0)
    run = replace(run, resume=resume)
    if needs_of(job).ranks > 1:
        announce(run)
    try:
        outcome = _concealed(job.run(run))
    except BaseException:  # what it took until here is part of what the step takes; only a kill loses it
        with suppress(OSError):  # of a full disk the job's own error tells more
            write_json(run.folder / STARTED, {**_marker(ask), "seconds": _since(began, before_s)})
        raise
    info(f"{title}: {'done' if ends_run else outcome.summary} ({time.monotonic() - began:.0f} s)")
    write_json(run.folder / DONE, {**_marker(ask), "summary": outcome.summary, "figures": dict(outcome.figures),
                                   "seconds": _since(began, before_s)})  # fmt: skip
    return outcome


def _since(began: float, before_s: Json) -> float:
    known = isinstance(before_s, int | float) and before_s >= 0
    return round(time.monotonic() - began + (before_s if known else 0.0), 3)


def _concealed(outcome: Outcome) -> Outcome:
    """What a job says goes to the terminal, three files and the report."""
    return replace(outcome, summary=conceal(outcome.summary), figures=conceal_names(outcome.figures))


def _deciding(settings: Json) -> Json:
    """The settings on which results depend. Inert keys, and where numbers go besides, make no finished step undone."""
    if isinstance(settings, Mapping):
        kept = {key: value for key, value in settings.items() if not is_inert(key) and key != "loggers"}
        return {key: _deciding(value) for key, value in kept.items()}
    return [_deciding(value) for value in settings] if isinstance(settings, list) else settings


def _done(folder: Path, ask: Ask) -> Outcome | None:
    if not (folder / DONE).is_file():
        return None
    marker = _read_marker(folder / DONE, "before", "own", "summary", "figures")
    if (marker["before"], marker["own"]) != (ask.before, ask.own):
        return None
    return Outcome(marker["summary"], marker["figures"], did_nothing=True)


def _read_marker(file: Path, *keys: str) -> Json:
    """A marker of ours.

    Raises:
        UserError: it is damaged.
    """
    try:
        found = read_json(file, _MARKER_BYTES)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read ({error}); {_MARKER_HELP}") from error
    if not isinstance(found, dict) or not found.keys() >= set(keys):
        raise UserError(f"{file} is not a step's marker, which has {', '.join(keys)}; {_MARKER_HELP}")
    return found


def begin(turn: Turn, *, may_differ: bool = False) -> None:
    """Mark a step as begun whose parts do its work; each of them may be the first.

    Args:
        may_differ: whether the user allowed its own part of the recipe to differ from what it was begun from.

    Raises:
        UserError: its folder holds what was made of something else.
    """
    folder = turn.run.folder
    earlier = _start_record(folder)
    changed = earlier is not None and (
        earlier["before"] != turn.ask.before or (earlier["own"] != turn.ask.own and not may_differ)
    )
    if changed:
        raise UserError(f"{folder} holds work started from another recipe or other earlier steps; choose another "
                        f"run_dir, or run the whole workflow once, which moves it aside")  # fmt: skip
    _prepare(folder, turn.ask, turn.title, set_aside=False)


def _prepare(folder: Path, ask: Ask, title: str, set_aside: bool) -> bool:
    """Make the folder ready and say whether there is something to go on from."""
    earlier = _start_record(folder)
    if earlier is None and folder.is_dir() and set_aside and any(folder.iterdir()):
        raise UserError(
            f"{folder} holds files that no step of this workflow wrote; move them, or choose another run_dir"
        )
    if earlier is not None and earlier["before"] != ask.before and set_aside:
        moved = _move_away(folder)
        info(f"{title}: an earlier step has changed, so it runs again; its old folder is now {moved}")
        earlier = None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DONE).unlink(missing_ok=True)
    spent = {key: value for key, value in (earlier or {}).items() if key == "seconds"}
    write_json(folder / STARTED, {**_marker(ask), **spent})
    return earlier is not None


def _start_record(folder: Path) -> Json:
    """What was asked for when it was begun; None where nothing was."""
    return _read_marker(folder / STARTED, "before", "own") if (folder / STARTED).is_file() else None


def _marker(ask: Ask) -> dict[str, str]:
    return {"before": ask.before, "own": ask.own}


def _move_away(folder: Path) -> Path:
    """Rename a step's folder: results of days are not deleted because a line above them changed."""
    number = 1
    while (target := folder.parent / REPLACED / f"{folder.name}-{number}").exists():
        number += 1
    target.parent.mkdir(exist_ok=True)
    shutil.move(folder, target)
    return target


def _together(outcomes: Mapping[str, Outcome]) -> Outcome:
    skipped = sum(outcome.did_nothing for outcome in outcomes.values())
    figures = {f"{name}/{key}": value for name, o in outcomes.items() for key, value in o.figures.items()}
    last = list(outcomes.values())[-1]
    skipped_note = f", {skipped} of them before" if skipped else ""
    summary = f"{len(outcomes)} workflow {'step' if len(outcomes) == 1 else 'steps'} done{skipped_note}; {last.summary}"
    return Outcome(summary, figures, did_nothing=skipped == len(outcomes))
