"""Runs named steps as one job: each in its own folder, skipped if it is done, and resumed if it was interrupted."""

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
                raise ValueError(f"no step may be called {name}: its folder is the launcher's or for parts; rename it")
        self.steps, self.input = dict(steps), None if input is None else place(input)

    def run(self, run: Run) -> Outcome:
        """Run the steps that are not done.

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
        """See `HasNeeds`: the most that any step needs. Steps that need one rank run on rank 0."""
        steps = [needs_of(job) for job in self.steps.values()]
        return Needs(
            ranks=max(one.ranks for one in steps), whole_nodes=max(one.whole_nodes for one in steps),
            degrees=max((one.degrees for one in steps), key=lambda degrees: prod(degrees.values())),
            engine=max((one.engine for one in steps), key=("", "torch", "megatron").index),
            any_nodes=any(one.any_nodes for one in steps), ray=any(one.ray for one in steps),
        )  # fmt: skip

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`: a step that needs several ranks gets all of them."""
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
    """Runs one step of a workflow whose earlier steps are done, so that each step may have its own machine."""

    def __init__(self, workflow: Workflow, name: str) -> None:
        if name not in workflow.steps:
            raise UserError(f"there is no step {name}; the recipe has {', '.join(workflow.steps)}")
        super().__init__(steps=workflow.steps, input=workflow.input)
        self.name, self._job = name, workflow.steps[name]

    def run(self, run: Run) -> Outcome:
        """Run the step if it is not done."""
        return replace(self.planned_step(run), ends_run=True).perform()

    def planned_step(self, run: Run) -> "PlannedStep":
        """This step. UserError if an earlier one is not done."""
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
    """A step of a workflow with all that it takes to run it."""

    name: str
    job: Job
    run: Run  #: its folder and settings
    fingerprint: StepFingerprint  #: of its settings, and of all before it
    title: str  #: its name in messages, such as `[2/3] train`
    ends_run: bool  #: nothing comes after it in the run

    def perform(self) -> Outcome:
        """Run it, unless it is done."""
        return perform(self.job, self.run, self.fingerprint, title=self.title, ends_run=self.ends_run)

    def is_done(self) -> bool:
        """Whether it finished with this fingerprint."""
        if isinstance(self.job, Workflow):
            return all(step.is_done() for step in self.job._planned_steps(self.run))
        return read_finished(self.run.folder, self.fingerprint) is not None


def jobs_in(job: Job) -> Iterator[tuple[tuple[str, ...], Job]]:
    """Yield (keys in the recipe, job) of each step, with steps of steps; a job that is no workflow has no keys."""
    if not isinstance(job, Workflow):
        yield (), job
        return
    for name, below in job.steps.items():
        yield from ((("steps", name, *at), one) for at, one in jobs_in(below))


def unfinished_steps(job: Job, run: Run) -> list[str]:
    """Prefixes of the keys of what is not done: `steps.NAME.` a step, and "" for a job that is no workflow."""
    if not isinstance(job, Workflow):
        return [] if read_finished(run.folder, StepFingerprint.of(run)) else [""]
    steps = [step for step in job._planned_steps(run) if not isinstance(job, OneStep) or step.name == job.name]
    return [f"steps.{step.name}." for step in steps if not step.is_done()]


def perform(
    job: Job, run: Run, fingerprint: StepFingerprint, *, title: str, ends_run: bool, set_aside: bool = True
) -> Outcome:
    """Run a job in its folder, unless it finished there with this fingerprint.

    Args:
        title: its name in messages.
        ends_run: do not log its summary, since it is printed as the result of the run.
        set_aside: move aside a folder that other earlier steps led to; else continue in it.
    """
    if isinstance(job, Workflow):  # has no marker of its own, so that a step whose folder was deleted runs again
        return job.run(run)
    if done := read_finished(run.folder, fingerprint):
        info(f"{title}: done earlier: {done.summary}")
        return done
    if urgency := preemption.urgency():  # the signal came at the end of the step before
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
        # The summary goes to the terminal, three files and the report, so it must hold no secret.
        outcome = replace(outcome, summary=conceal(outcome.summary), figures=conceal_names(outcome.figures))
    except BaseException:  # the time of this attempt counts, too; only a kill loses it
        with suppress(OSError):  # if the disk is full, the job's own error says more
            write_json(run.folder / STARTED, {**asdict(fingerprint), "seconds": _since(began, before_s)})
        raise
    info(f"{title}: {'done' if ends_run else outcome.summary} ({time.monotonic() - began:.0f} s)")
    report = {"summary": outcome.summary, "figures": dict(outcome.figures), "seconds": _since(began, before_s)}
    write_json(run.folder / DONE, {**asdict(fingerprint), **report})
    return outcome


def _since(began: float, before_s: Json) -> float:
    is_valid = isinstance(before_s, int | float) and before_s >= 0  # it was read from a file
    return round(time.monotonic() - began + (before_s if is_valid else 0.0), 3)


def begin(step: PlannedStep, *, may_differ: bool = False) -> None:
    """Mark a step as started whose parts run as processes of their own; any of them may be the first.

    UserError if it was started from other settings, unless they `may_differ`, or after other earlier steps.
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
