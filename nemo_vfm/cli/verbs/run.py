# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Run a recipe with your changes, in a run folder with a report. Run it again to resume.

A recipe that asks for several devices (parallel.shard=2) runs on that many of this machine, or on those that torchrun
or srun starts. SIGTERM and SIGUSR1 end a training after its step, with a checkpoint and exit status 75; so does Ctrl-C,
with 130. A second one does not wait, and the run resumes from the checkpoint before.
"""

import argparse
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import add_recipe_arguments
from nemo_vfm.core.network.secret import conceal, conceal_keys
from nemo_vfm.core.preemption import DEFAULT, EXIT_CODE, INTERRUPTED, PreemptedNow, is_interrupt, listening
from nemo_vfm.core.ranks import SILENCE_S, TIMEOUT_S
from nemo_vfm.runtime.command import composed_recipe, run_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_vfm.config import Composed
    from nemo_vfm.core.errors import LostRank
    from nemo_vfm.core.types.job import Job, Outcome, Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, and what may differ from a run that is already there."""
    add_recipe_arguments(parser)
    parser.add_argument("--allow", metavar="KEY", action="append", default=[],
                        help="resume in a run folder even though this key differs")  # fmt: skip
    parser.add_argument(
        "--only", metavar="STEP", help="run only this step of a workflow; the steps before it must be done"
    )
    parser.add_argument("--part", metavar="K/N", help="this part alone of N that share the work, from 0; K/N@1 is of "
                        "the second round; a run of the whole comes after them")  # fmt: skip
    parser.add_argument("--sweep", metavar="KEY=A,B", action="extend", nargs="+", default=[],
                        help="run every combination of these values and print a table at the end")  # fmt: skip
    parser.add_argument("--preempt", metavar="SIGNAL", action="append", default=[],
                        help=f"end well at this signal, with a checkpoint and status 75; else at {', '.join(DEFAULT)}"
                        )  # fmt: skip
    parser.add_argument("--max-restarts", metavar="N", type=int, default=0,
                        help="on several devices: restart all ranks up to N times when one dies")  # fmt: skip
    parser.add_argument("--rank-timeout", metavar="SECONDS", type=float, default=TIMEOUT_S,
                        help="on several devices: how long a rank may wait for another")  # fmt: skip
    parser.add_argument("--rank-silence", metavar="SECONDS", type=float, default=SILENCE_S,
                        help="on several devices: a rank without a heartbeat for this long is lost")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Compose, check, build, run, report."""
    if arguments.sweep:
        _require_all(arguments)
        from nemo_vfm.runtime.sweep import run_sweep

        return run_sweep(arguments)
    composed = composed_recipe(arguments)
    folder = run_folder(composed)
    _say_what_runs(composed, folder)
    from nemo_vfm.config import trust_list
    from nemo_vfm.core import preemption, ranks
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.runtime.checks.meta_build import built
    from nemo_vfm.runtime.rank_processes import end_with_the_launcher
    from nemo_vfm.runtime.user_permissions import permissions, say_recipients

    end_with_the_launcher()
    ranks.adopt_slurm(os.environ)
    signals = arguments.preempt or DEFAULT
    try:
        preemption.numbers(signals)
    except ValueError as error:
        raise UserError(str(error)) from error
    trust = trust_list(arguments.trust)
    allowed = permissions(arguments.allow_host, composed.path)
    job = _wanted(built(composed, trust, allowed), arguments.only)
    say_recipients(composed, trust, allowed)
    if arguments.part is not None:
        from nemo_vfm.runtime.run_part import Share, part_of

        job = share = Share(job, part_of(arguments.part), folder)
        folder = share.folder
    return _through_phases(arguments, composed, folder, job, signals)


def _say_what_runs(composed: "Composed", folder: Path) -> None:
    """The first line, before the seconds that torch takes; of several processes only the first says it."""
    from nemo_vfm.core.log import plain

    if not {"RANK", "SLURM_PROCID"} & os.environ.keys():
        sys.stderr.write(f"{plain(f'{composed.path} runs in {folder}')}\n")
        sys.stderr.flush()


def _require_all(arguments: argparse.Namespace) -> None:
    from nemo_vfm.core.errors import UserError

    for name in ("only", "part"):
        if (value := vars(arguments)[name]) is not None:
            raise UserError(f"a sweep runs each combination completely; drop --{name} {value}")


def _wanted(job: "Job", step: str | None) -> "Job":
    """All of it, or one step."""
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.workflow import OneStep, Workflow

    if step is None:
        return job
    if not isinstance(job, Workflow):
        raise UserError(f"--only {step}: the recipe has no steps; drop --only")
    return OneStep(job, step)


def _through_phases(
    arguments: argparse.Namespace, composed: "Composed", folder: Path, job: "Job", signals: "Sequence[str]"
) -> int:
    """Run the job, and again where it needs another number of processes and we are who starts them."""
    from nemo_vfm.core import ranks
    from nemo_vfm.core.errors import NextPhase

    while True:
        count = _ranks_now(job, folder)
        status = _spread(arguments, composed, folder, job, signals)
        if status != NextPhase.exit_code or ranks.is_given() or _ranks_now(job, folder) == count:
            return status


def _spread(
    arguments: argparse.Namespace, composed: "Composed", folder: Path, job: "Job", signals: "Sequence[str]"
) -> int:
    """Run the job here, as one of several processes, or by starting them."""
    from nemo_vfm.core import ranks
    from nemo_vfm.core.types.job import MultiRankJob, Run
    from nemo_vfm.runtime.rank_processes import run_as_one_of_several

    if not ranks.is_given() and (count := _ranks_now(job, folder)) > 1:
        from nemo_vfm.config import RecipeError
        from nemo_vfm.runtime.checks.shareable_batches import unshareable
        from nemo_vfm.runtime.local_launch import launch

        if problems := unshareable(composed, job):
            raise RecipeError(problems)
        return launch(_words(arguments), count, signals, max_restarts=arguments.max_restarts)
    if not isinstance(job, MultiRankJob) and not ranks.is_first():  # a library's own way of starting several
        job.run(Run(folder, composed.to_yaml(), composed.seed))
        return 0
    _require(job)

    def first() -> int:
        return _in_folder(arguments, composed, folder, job)

    def lost(sentence: str) -> None:
        from nemo_vfm.runtime.run_folder import Status

        Status(folder).write("failed", error=sentence)

    with listening(signals):
        if ranks.count() == 1:
            return first()
        return run_as_one_of_several(job, composed.to_yaml(), folder, first, lost, timeout_s=arguments.rank_timeout,
                                     silence_s=arguments.rank_silence)  # fmt: skip


def _ranks_now(job: "Job", folder: Path) -> int:
    """On how many ranks the job goes on."""
    from nemo_vfm.core.types.job import ElasticJob
    from nemo_vfm.workflow import num_ranks

    return job.ranks_now(folder) if isinstance(job, ElasticJob) else num_ranks(job)


def _require(job: "Job") -> None:
    """Raises UserError where the processes that were started are not those that the recipe needs."""
    from nemo_vfm.core import ranks
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.types.job import MultiRankJob
    from nemo_vfm.workflow import num_ranks

    count = ranks.count()
    try:
        if isinstance(job, MultiRankJob) and num_ranks(job) > 1:
            job.require(count)
        elif isinstance(job, MultiRankJob) and count > 1:
            raise ValueError(f"the recipe is for one device, but {count} processes were started; set degrees under "
                             f"parallel: whose product is {count}, such as parallel.shard={count}")  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from error


def _words(arguments: argparse.Namespace) -> list[str]:
    """The command again, for the ranks."""
    names = ("conf", "overlay", "trust", "allow", "allow_host", "preempt")
    options = [f"--{name.replace('_', '-')}={value}" for name in names for value in vars(arguments)[name]]
    options += [f"--only={arguments.only}"] if arguments.only else []
    limits = [f"--rank-timeout={arguments.rank_timeout}", f"--rank-silence={arguments.rank_silence}"]
    return [arguments.recipe, *arguments.overrides, *options, *limits]


def _in_folder(arguments: argparse.Namespace, composed: "Composed", folder: Path, job: "Job") -> int:
    """Hold the folder and run."""
    from nemo_vfm.runtime.run_folder import Status, open_folder

    with open_folder(
        folder, conceal_keys(composed.to_yaml()), composed.seed, arguments.allow, source=composed.path
    ) as prepared:
        return _run(job, prepared, Status(prepared.folder))


def _run(job: "Job", run: "Run", status: "Status") -> int:
    """Run the job and leave status, report and, where it failed, the traceback."""
    from nemo_vfm.core.errors import NemoVfmError, NextPhase, Preempted, UserError
    from nemo_vfm.core.storage.files import is_full

    began, finished = time.monotonic(), status.finished()
    try:
        with status.running():
            outcome = _perform(job, run)
    except (Preempted, PreemptedNow) as error:
        return _stopped(error, run.folder, status)
    except NextPhase as error:
        status.write("between_phases", error=str(error))
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except (KeyboardInterrupt, SystemExit) as error:
        if not is_interrupt(error):
            return _failed(error, 1, run.folder, status)
        status.write("interrupted")
        sys.stderr.write(f"interrupted; run the same command again to resume in {run.folder}\n")
        return INTERRUPTED
    except NemoVfmError as error:
        return _failed(error, error.exit_code, run.folder, status)
    except Exception as error:
        if is_full(error):
            return _failed(_no_room(error, run.folder), UserError.exit_code, run.folder, status)
        if (lost := _lost_behind(error)) is not None:
            return _failed(lost, lost.exit_code, run.folder, status)
        return _failed(error, 1, run.folder, status)
    if outcome.did_nothing and finished is not None:
        status.put(finished)  # when it ran and how long it took, not when somebody looked
    else:
        status.write("done", summary=outcome.summary, figures=dict(outcome.figures))
    _finish(outcome, run.folder, time.monotonic() - began)
    return 0


def _stopped(error: BaseException, folder: Path, status: "Status") -> int:
    """The scheduler or the user wanted the machine: nothing failed."""
    said = str(error) if not isinstance(error, PreemptedNow) else f"{error} ended the run immediately"
    code = getattr(error, "exit_code", EXIT_CODE)
    status.write("interrupted" if code == INTERRUPTED else "preempted", error=said)
    sys.stderr.write(f"{said}; run the same command again to resume in {folder}\n")
    return code


def _lost_behind(error: Exception) -> "LostRank | None":
    """Another rank is to blame for what a collective raises."""
    from nemo_vfm.core import ranks

    if ranks.count() == 1:
        return None
    from nemo_vfm.parallel.ranks.consensus import lost_behind

    return lost_behind(error)


def _no_room(error: Exception, folder: Path) -> Exception:
    """What anything that writes may raise, as a sentence."""
    from nemo_vfm.core.errors import UserError

    told = UserError(
        f"there is no room left on the disk of {getattr(error, 'filename', None) or folder}; free some space and "
        f"run the same command again to resume"
    )
    told.__cause__ = error
    return told


def _perform(job: "Job", run: "Run") -> "Outcome":
    from nemo_vfm.workflow import Ask, perform

    return perform(job, run, Ask.of(run), title=run.folder.name, set_aside=False)


def _failed(error: BaseException, code: int, folder: Path, status: "Status") -> int:
    """Keep the traceback, show one sentence; what there is goes into a report all the same."""
    from nemo_vfm.core.log import plain

    text = conceal("".join(traceback.format_exception(error)))
    kept = _keep(folder / "traceback.txt", text)
    status.write("nothing_kept" if code == 3 else "failed", error=conceal(str(error)))
    if code == 1:
        where = f"The traceback is in {folder / 'traceback.txt'}" if kept else text
        sys.stderr.write(f"{type(error).__name__}: {plain(str(error))}\n{where}\n")
    else:
        sys.stderr.write(f"{plain(str(error))}\n")
    report = _report(folder)
    if report:
        sys.stdout.write(f"{report}\n")
    return code


def _keep(file: Path, text: str) -> bool:
    """Whether a text could be written: on a full disk the error itself must still be told."""
    try:
        file.write_text(text)
    except OSError:
        with suppress(OSError):
            file.unlink()  # an empty one would only puzzle
        return False
    return True


def _finish(outcome: "Outcome", folder: Path, seconds: float) -> None:
    """Say how it went; the last line is the path of the report."""
    (folder / "traceback.txt").unlink(missing_ok=True)  # of an earlier try
    page = folder / "report.html"
    if outcome.did_nothing and page.is_file():
        sys.stdout.write(f"Nothing to do; this run is already finished: {outcome.summary}\n{page}\n")
        return
    before = "Nothing to do; this run is already finished: " if outcome.did_nothing else ""
    report = _report(folder)
    sys.stdout.write(f"{before}{outcome.summary} ({seconds:.0f} s)\n{report or folder}\n")


def _report(folder: Path) -> Path | None:
    """Write the page; a run is whole without it."""
    from nemo_vfm.core.log import warn

    try:
        from nemo_vfm.report import page

        return page.write(folder)
    except Exception as error:
        _keep(folder / "report-traceback.txt", conceal("".join(traceback.format_exception(error))))
        warn(f"the report was not written: {type(error).__name__}: {error} (see report-traceback.txt)")
        return None


if TYPE_CHECKING:
    from nemo_vfm.runtime.run_folder import Status
