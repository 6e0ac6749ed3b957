"""Runs named steps as one job: each step runs in its own folder, is skipped when done, and resumed when not."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

from nemo_vfm.core import preemption, progress
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.secret import conceal, conceal_names
from nemo_vfm.core.storage.files import sha256_text, write_json
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.job import (
    DONE,
    LAUNCH,
    PARTS,
    STARTED,
    Job,
    MultiRankJob,
    Needs,
    Outcome,
    Run,
    announce,
    needs_of,
)  # fmt: skip
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.workflow.step_folder import StepFingerprint, prepare, read_finished, start_record

_NAME = re.compile(r"[A-Za-z][\w-]{0,99}")


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
        outcomes = {one.name: one.perform() for one in self._planned_steps(run)}
        skipped = sum(outcome.did_nothing for outcome in outcomes.values())
        figures = {f"{name}/{key}": value for name, o in outcomes.items() for key, value in o.figures.items()}
        last = list(outcomes.values())[-1]
        count = f"{len(outcomes)} workflow {'step' if len(outcomes) == 1 else 'steps'} done"
        skipped_note = f", {skipped} of them before" if skipped else ""
        return Outcome(f"{count}{skipped_note}; {last.summary}", figures, did_nothing=skipped == len(outcomes))

    def _planned_steps(self, run: Run) -> "Iterator[PlannedStep]":
        before = run.before or sha256_text(f"seed {run.seed}")
        for number, (name, job) in enumerate(self.steps.items(), 1):
            step = replace(run.step(name), before=before)
            fingerprint = StepFingerprint.of(step, before)
            ends_run = number == len(self.steps) and not run.before
            yield PlannedStep(name, job, step, fingerprint, f"[{number}/{len(self.steps)}] {name}", ends_run)
            before = fingerprint.after()

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`: what its widest step needs. The other steps are rank 0's alone."""
        steps = [needs_of(job) for job in self.steps.values()]
        return Needs(
            ranks=max(one.ranks for one in steps), whole_nodes=max(one.whole_nodes for one in steps),
            degrees=max((one.degrees for one in steps), key=lambda degrees: prod(degrees.values())),
            engine=max((one.engine for one in steps), key=("", "torch", "megatron").index),
            any_nodes=any(one.any_nodes for one in steps), ray=any(one.ray for one in steps),
        )  # fmt: skip

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`: every step that is spread at all is spread over all ranks."""
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


@no_component
class OneStep(Workflow):
    """One step of a workflow, whose earlier ones are done already: each may have a machine of its own."""

    def __init__(self, workflow: Workflow, name: str) -> None:
        if name not in workflow.steps:
            raise UserError(f"there is no step {name}; the recipe has {', '.join(workflow.steps)}")
        super().__init__(steps=workflow.steps, input=workflow.input)
        self.name, self._job = name, workflow.steps[name]

    def run(self, run: Run) -> Outcome:
        """Run it where it is not done."""
        return replace(self.planned_step(run), ends_run=True).perform()

    def planned_step(self, run: Run) -> "PlannedStep":
        """This step as it is asked for, all before it being done."""
        for step in self._planned_steps(run):
            if step.name == self.name:
                return step
            if not step.is_done():
                raise UserError(f"step {self.name} comes after {step.name}, which is not done in {step.run.folder} in "
                                f"the form of this recipe; run that step first, or all of them")  # fmt: skip
        raise AssertionError(f"no step {self.name}")

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`: of this step alone."""
        return needs_of(self._job, num_gpus=num_gpus, folder=None if folder is None else folder / self.name)

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`."""
        Workflow(steps={self.name: self._job}).require(num_ranks)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step in the order of its workflow, the fingerprint of what it must do, and what to call it."""

    name: str
    job: Job
    run: Run
    fingerprint: StepFingerprint
    title: str
    ends_run: bool  #: nothing comes after it in the run

    def perform(self) -> Outcome:
        """Run it, unless it is done."""
        return perform(self.job, self.run, self.fingerprint, title=self.title, ends_run=self.ends_run)

    def is_done(self) -> bool:
        """Whether it has done just this before."""
        if isinstance(self.job, Workflow):
            return all(step.is_done() for step in self.job._planned_steps(self.run))
        return read_finished(self.run.folder, self.fingerprint) is not None


def jobs_in(job: Job) -> Iterator[tuple[tuple[str, ...], Job]]:
    """(address, job) of each step, and of each step of a step; a job by itself has an empty address."""
    if not isinstance(job, Workflow):
        yield (), job
        return
    for name, below in job.steps.items():
        yield from ((("steps", name, *at), one) for at, one in jobs_in(below))


def unfinished_steps(job: Job, run: Run) -> list[str]:
    """How the addresses begin of what is still to be done: `steps.NAME.` for each step; nothing for all of a job."""
    if not isinstance(job, Workflow):
        return [] if read_finished(run.folder, StepFingerprint.of(run)) else [""]
    steps = [step for step in job._planned_steps(run) if not isinstance(job, OneStep) or step.name == job.name]
    return [f"steps.{step.name}." for step in steps if not step.is_done()]


def perform(
    job: Job, run: Run, fingerprint: StepFingerprint, *, title: str, ends_run: bool, set_aside: bool = True
) -> Outcome:
    """Run a job in its folder unless it has done just this before.

    Args:
        title: what to call it in messages.
        ends_run: its summary is the run's, which is printed as a result and so not logged, too.
        set_aside: move away a folder whose predecessors were others; else go on in it.
    """
    if isinstance(job, Workflow):  # it marks its steps one by one, so that one that was deleted is made again
        return job.run(run)
    if done := read_finished(run.folder, fingerprint):
        info(f"{title}: done earlier: {done.summary}")
        return done
    if urgency := preemption.urgency():  # it came while the step before took its last
        raise preemption.preempted_error(urgency, f"before {title}")
    resume = prepare(run.folder, fingerprint, title, set_aside)
    info(f"{title}: {'resumes' if resume else 'starts'}")
    progress.forget()
    began, before_s = time.monotonic(), (start_record(run.folder) or {}).get("seconds", 0.0)
    run = replace(run, resume=resume)
    if needs_of(job).ranks > 1:
        announce(run)
    try:
        outcome = job.run(run)
        # What a job says goes to the terminal, three files and the report.
        outcome = replace(outcome, summary=conceal(outcome.summary), figures=conceal_names(outcome.figures))
    except BaseException:  # what it took until here is part of what the step takes; only a kill loses it
        with suppress(OSError):  # of a full disk the job's own error tells more
            write_json(run.folder / STARTED, {**asdict(fingerprint), "seconds": _since(began, before_s)})
        raise
    info(f"{title}: {'done' if ends_run else outcome.summary} ({time.monotonic() - began:.0f} s)")
    report = {"summary": outcome.summary, "figures": dict(outcome.figures), "seconds": _since(began, before_s)}
    write_json(run.folder / DONE, {**asdict(fingerprint), **report})
    return outcome


def _since(began: float, before_s: Json) -> float:
    known = isinstance(before_s, int | float) and before_s >= 0
    return round(time.monotonic() - began + (before_s if known else 0.0), 3)


def begin(step: PlannedStep, *, may_differ: bool = False) -> None:
    """Mark a step as begun whose parts do its work; each of them may be the first.

    Its own part of the recipe `may_differ` from what it was begun from where the user allowed it.
    """
    folder = step.run.folder
    earlier = start_record(folder)
    changed = earlier is not None and (
        earlier["before"] != step.fingerprint.before or (earlier["own"] != step.fingerprint.own and not may_differ)
    )
    if changed:
        raise UserError(f"{folder} holds work started from another recipe or other earlier steps; choose another "
                        f"run_dir, or run the whole workflow once, which moves it aside")  # fmt: skip
    prepare(folder, step.fingerprint, step.title, set_aside=False)
