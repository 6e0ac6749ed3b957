"""Runs a composed recipe in its run folder: on this process, on ranks that it starts, or as one of several ranks.

What happened is in `status.json` and in `RunEnding`. Nothing is printed but the first line: whoever asked for the run
shows how it ended.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import NemoVfmError, NextPhase, Preempted, UserError
from nemo_vfm.core.log import info, scrub, warn
from nemo_vfm.core.preemption import DEFAULT, EXIT_CODE, INTERRUPTED, PreemptedNow, is_interrupt
from nemo_vfm.core.ranks import SILENCE_S, TIMEOUT_S
from nemo_vfm.core.secret import conceal, conceal_keys
from nemo_vfm.core.storage.files import is_full
from nemo_vfm.core.types.job import REPORT, STATUS, TRACEBACK, Job, MultiRankJob, Outcome, Run, needs_of
from nemo_vfm.runtime.command import run_folder

if TYPE_CHECKING:
    from nemo_vfm.config import ComposedRecipe
    from nemo_vfm.runtime.run_folder import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The command-line options of `run`; `nemo-vfm run --help` explains each."""

    trust: Sequence[str] = ()
    allow: Sequence[str] = ()
    allow_host: Sequence[str] = ()
    only: str | None = None
    part: str | None = None
    preempt: Sequence[str] = ()
    max_restarts: int = 0
    rank_timeout: float = TIMEOUT_S
    rank_silence: float = SILENCE_S

    def words(self) -> list[str]:
        """The options again, for the ranks that are started."""
        names = ("trust", "allow", "allow_host", "preempt")
        found = [f"--{name.replace('_', '-')}={value}" for name in names for value in getattr(self, name)]
        found += [f"--only={self.only}"] if self.only else []
        return [*found, f"--rank-timeout={self.rank_timeout}", f"--rank-silence={self.rank_silence}"]


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended in this process."""

    folder: Path  #: the run folder
    status: int  #: for the exit of the process
    outcome: Outcome | None = None  #: of the job; None where it did not finish
    error: BaseException | None = None  #: why it did not finish; None where it did
    report: Path | None = None  #: the page; None where there is none
    seconds: float = 0.0  #: it took
    trace: str = ""  #: the traceback of something unexpected where no file could keep it


Show: TypeAlias = Callable[[RunEnding], None]


@dataclass(slots=True)
class RecipeRun:
    """One run of a recipe."""

    composed: "ComposedRecipe"  #: the recipe
    words: Sequence[str]  #: what names it to `nemo-vfm run`, for ranks that must be started
    options: RunOptions  #: what the user asked for besides
    show: Show  #: is told on rank 0 how the job ended, before other ranks are left
    verb: str = "run"  #: of the ranks that are started
    folder: Path | None = None  #: where it runs; None is the recipe's run folder
    wrap: "Callable[[Job], Job] | None" = None  #: makes the job that is run of the recipe's; None runs that
    _folder: Path = field(default=Path(), init=False)
    _writes: Sequence[Path] = field(default=(), init=False)

    def run(self) -> int:
        """Check, build, run and report; the exit status. Whoever calls it listens to signals."""
        self._folder = run_folder(self.composed) if self.folder is None else self.folder
        # The first line, before the seconds that torch takes; of several processes only the first says it.
        if not {"RANK", "SLURM_PROCID"} & os.environ.keys():
            sys.stderr.write(f"{scrub(f'{self.composed.path} runs in {self._folder}')}\n")
            sys.stderr.flush()
        from nemo_vfm.runtime.rank_processes import end_with_the_launcher

        end_with_the_launcher()
        ranks.adopt_slurm(os.environ)
        job = self._build_job()
        if self.options.part is not None:
            from nemo_vfm.runtime.run_part import JobPart, part_of

            text, part = self.composed.to_yaml(conceal_keys), part_of(self.options.part)
            job = share = JobPart(job, part, self._folder, text, self.options.allow, self._source())
            self._folder = share.folder
        while True:
            count = needs_of(job, folder=self._folder).ranks
            if count > 1 and not ranks.is_given():
                status = self._launch(job, count)
            elif ranks.count() > 1:
                status = self._as_one_of_several(job)
            else:
                _require_ranks(job)
                status = self._in_folder(job)
            # The next phase may be for another number of processes; who starts them is us, unless we were started.
            is_next = status == NextPhase.exit_code and not ranks.is_given()
            if not is_next or needs_of(job, folder=self._folder).ranks == count:
                return status

    def _build_job(self) -> Job:
        from nemo_vfm.config import recipients, trust_list, writes_outside
        from nemo_vfm.runtime.checks.meta_build import build_on_meta
        from nemo_vfm.runtime.checks.missing_packages import missing_now, refuse_missing
        from nemo_vfm.runtime.user_permissions import permissions
        from nemo_vfm.workflow import OneStep, Workflow

        trust, step = trust_list(self.options.trust), self.options.only
        allowed = permissions(self.options.allow_host, self.composed.path)
        job = build_on_meta(self.composed, trust, allowed)
        if step is not None:
            if not isinstance(job, Workflow):
                raise UserError(f"--only {step}: the recipe has no steps; drop --only")
            job = OneStep(job, step)
        refuse_missing(missing_now(self.composed, job, self._folder, trust, allowed))
        for one in recipients(self.composed, trust, allowed) if ranks.is_first() else ():
            info(str(one))  # who gets what from the run, before it begins
        self._writes = writes_outside(self.composed, trust, allowed)
        return job if self.wrap is None else self.wrap(job)

    def _launch(self, job: Job, count: int) -> int:
        """Start the other processes, and run this one among them."""
        from nemo_vfm.config import RecipeError
        from nemo_vfm.runtime.checks.shareable_batches import unshareable
        from nemo_vfm.runtime.local_launch import launch

        if problems := unshareable(self.composed, job):
            raise RecipeError(problems)
        return launch(
            [self.verb, *self.words, *self.options.words()], count, self.options.preempt or DEFAULT,
            max_restarts=self.options.max_restarts,
        )  # fmt: skip

    def _as_one_of_several(self, job: Job) -> int:
        from nemo_vfm.config import read_values
        from nemo_vfm.runtime.rank_processes import run_as_one_of_several
        from nemo_vfm.runtime.run_folder import Status

        text = self.composed.to_yaml()
        if not isinstance(job, MultiRankJob) and not ranks.is_first():  # a library's own way of starting several
            job.run(Run(self._folder, read_values(text, "this recipe"), self.composed.seed))
            return 0
        _require_ranks(job)
        options = self.options
        return run_as_one_of_several(
            job, text, self._folder, lambda: self._in_folder(job),
            lambda sentence: Status(self._folder).write("failed", error=sentence),
            timeout_s=options.rank_timeout, silence_s=options.rank_silence,
        )  # fmt: skip

    def _in_folder(self, job: Job) -> int:
        """Hold the folder, run, and show how it ended."""
        from nemo_vfm.runtime.run_folder import Status, open_folder
        from nemo_vfm.runtime.user_permissions import remember

        text, seed = self.composed.to_yaml(conceal_keys), self.composed.seed
        with open_folder(self._folder, text, seed, self.options.allow, source=self._source()) as prepared:
            remember(text, self._writes)
            ending = perform_recorded(job, prepared, Status(prepared.folder))
            self.show(ending)
            return ending.status

    def _source(self) -> Path | None:
        """The recipe's file, whose name the manifest keeps; None where it has none."""
        return self.composed.path if self.composed.path.is_file() else None


def perform_recorded(job: Job, run: Run, status: "Status") -> RunEnding:
    """Run the job and leave status, report and, where it failed, the traceback."""
    from nemo_vfm.workflow import perform
    from nemo_vfm.workflow.step_folder import StepFingerprint

    began, finished = time.monotonic(), status.read_finished()
    try:
        with status.heartbeat():
            outcome = perform(job, run, StepFingerprint.of(run), title=run.folder.name, ends_run=True, set_aside=False)
    except (Preempted, PreemptedNow) as error:  # the scheduler or the user wanted the machine: nothing failed
        meant = error if not isinstance(error, PreemptedNow) else Preempted(f"{error} ended the run immediately")
        code = getattr(meant, "exit_code", EXIT_CODE)
        status.write("interrupted" if code == INTERRUPTED else "preempted", error=str(meant))
        return RunEnding(run.folder, code, error=meant)
    except NextPhase as error:
        status.write("between_phases", error=str(error))
        return RunEnding(run.folder, error.exit_code, error=error)
    except (KeyboardInterrupt, SystemExit) as error:
        if not is_interrupt(error):
            return _record_failure(error, 1, run.folder, status)
        status.write("interrupted")
        return RunEnding(run.folder, INTERRUPTED, error=error)
    except NemoVfmError as error:
        return _record_failure(error, error.exit_code, run.folder, status)
    except Exception as error:
        if is_full(error):
            return _record_failure(_no_room(error, run.folder), UserError.exit_code, run.folder, status)
        if ranks.count() > 1:  # another rank may be to blame for what a collective raises
            from nemo_vfm.parallel.ranks.process_group import lost_behind

            if (lost := lost_behind(error)) is not None:
                return _record_failure(lost, lost.exit_code, run.folder, status)
        return _record_failure(error, 1, run.folder, status)
    if outcome.did_nothing and finished is not None:
        status.put(finished)  # when it ran and how long it took, not when somebody looked
    elif not status.write("done", summary=outcome.summary, figures=dict(outcome.figures)):
        unsaid = UserError(f"all work is done, but {run.folder / STATUS} cannot be written; run the same "
                           f"command again when it can")  # fmt: skip
        return _record_failure(unsaid, unsaid.exit_code, run.folder, status)
    (run.folder / TRACEBACK).unlink(missing_ok=True)  # of an earlier try
    page = run.folder / REPORT
    report = page if outcome.did_nothing and page.is_file() else _report(run.folder)
    return RunEnding(run.folder, 0, outcome, report=report, seconds=time.monotonic() - began)


def _require_ranks(job: Job) -> None:
    """Raises UserError where the processes that were started are not those that the recipe needs."""
    count = ranks.count()
    try:
        if isinstance(job, MultiRankJob) and needs_of(job).ranks > 1:
            job.require(count)
        elif isinstance(job, MultiRankJob) and count > 1:
            raise ValueError(f"the recipe is for one device, but {count} processes were started; set degrees under "
                             f"parallel: whose product is {count}, such as parallel.shard={count}")  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from error


def _no_room(error: Exception, folder: Path) -> Exception:
    """What anything that writes may raise, as a sentence."""
    # Of a copy the second name is the one that was written to.
    where = getattr(error, "filename2", None) or getattr(error, "filename", None) or folder
    refusal = UserError(
        f"there is no space left on the disk of {where}; free some space and run the same command again to resume"
    )
    refusal.__cause__ = error
    return refusal


def _record_failure(error: BaseException, code: int, folder: Path, status: "Status") -> RunEnding:
    """Keep the traceback; what there is goes into a report all the same."""
    text = conceal("".join(traceback.format_exception(error)))
    kept = _keep(folder / TRACEBACK, text)
    status.write("nothing_kept" if code == 3 else "failed", error=conceal(str(error)))
    return RunEnding(folder, code, error=error, report=_report(folder), trace="" if kept else text)


def _keep(file: Path, text: str) -> bool:
    """Whether a text could be written: on a full disk the error itself must still be told."""
    try:
        file.write_text(text)
    except OSError:
        with suppress(OSError):
            file.unlink()  # an empty one would only puzzle
        return False
    return True


def _report(folder: Path) -> Path | None:
    """Write the page; a run is whole without it."""
    try:
        from nemo_vfm.report import page

        return page.write(folder)
    except Exception as error:
        _keep(folder / "report-traceback.txt", conceal("".join(traceback.format_exception(error))))
        warn(f"the report was not written: {type(error).__name__}: {error} (see report-traceback.txt)")
        return None
