"""Run a recipe with your changes, in a run folder with a report. Run it again to resume.

A recipe that asks for several devices (parallel.shard=2) runs on that many of this machine, or on those that torchrun
or srun starts. SIGTERM and SIGUSR1 end a training after its step, with a checkpoint and exit status 75; so does Ctrl-C,
with 130. A second one does not wait, and the run resumes from the checkpoint before.

The last line is the path of the report. If optional packages are missing that the steps still to be done need, nothing
runs: one line for pip installs them all.

Examples:
  nemo-vfm run quickstart seed=1 run_dir=runs/one        # with changes
  nemo-vfm run quickstart --overlay smoke                # tiny sizes, all parts; in runs/quickstart-smoke
  nemo-vfm run quickstart --only curate                  # one step of a workflow, perhaps on another machine
  nemo-vfm run quickstart --only curate --part 3/8       # one share of its files: the fourth of eight
  nemo-vfm run diffusion/train_small --allow optimizer.lr optimizer.lr=1e-3  # resume though this key differs
  nemo-vfm run diffusion/train_small --sweep optimizer.lr=1e-4,3e-4 model=dit_s,dit_b  # every combination, one table
"""

import argparse
import sys
from dataclasses import fields

from nemo_vfm.cli.arguments import add_recipe_arguments
from nemo_vfm.core.errors import NextPhase, Preempted
from nemo_vfm.core.preemption import DEFAULT, INTERRUPTED, listen_for_signals
from nemo_vfm.core.program import below_caret
from nemo_vfm.core.ranks import SILENCE_S, TIMEOUT_S
from nemo_vfm.runtime.command import composed_recipe
from nemo_vfm.runtime.recipe_run import RecipeRun, RunEnding, RunOptions
from nemo_vfm.runtime.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, and what may differ from a run that is already there."""
    add_recipe_arguments(parser)
    parser.add_argument("--allow", metavar="KEY", action="append", default=[],
                        help="resume in a run folder even though this key differs")  # fmt: skip
    parser.add_argument("--only", metavar="STEP", help="run only this step of a workflow; earlier steps must be done")
    parser.add_argument("--part", metavar="K/N", help="run share K of N (from 0); K/N@1 for the second round; then "
                        "run once without --part")  # fmt: skip
    parser.add_argument("--sweep", metavar="KEY=A,B", action="extend", nargs="+", default=[],
                        help="run every combination of these values and print a table at the end")  # fmt: skip
    parser.add_argument("--preempt", metavar="SIGNAL", action="append", default=[],
                        help=f"signal that triggers checkpoint-and-exit with status 75; default {', '.join(DEFAULT)}"
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
        from nemo_vfm.core.errors import UserError
        from nemo_vfm.runtime.sweep import run_sweep

        for name in ("only", "part"):
            if (value := vars(arguments)[name]) is not None:
                raise UserError(f"a sweep runs each combination completely; drop --{name} {value}")

        return run_sweep(arguments)
    given = RunOptions(**{one.name: vars(arguments)[one.name] for one in fields(RunOptions)})
    files = [f"--{name}={value}" for name in ("conf", "overlay") for value in vars(arguments)[name]]
    with listen_for_signals(given.preempt or DEFAULT):
        composed = composed_recipe(arguments)
        return RecipeRun(composed, [arguments.recipe, *arguments.overrides, *files], given, show).run()


def show(ending: RunEnding) -> None:
    """Say how the job ended; the last line is the path of the report."""
    if ending.outcome is not None:
        before = "Nothing to do; this run is already finished: " if ending.outcome.did_nothing else ""
        took = "" if before and ending.report else f" ({ending.seconds:.0f} s)"
        Terminal().result(f"{before}{ending.outcome.summary}{took}")
        sys.stdout.write(f"{ending.report or ending.folder}\n")
        return
    sys.stderr.write(f"{below_caret(_sentence(ending), sys.stderr)}\n")
    if ending.report:
        sys.stdout.write(f"{ending.report}\n")


def _sentence(ending: RunEnding) -> str:
    from nemo_vfm.core.log import scrub

    message = scrub(str(ending.error))
    if isinstance(ending.error, NextPhase):
        return message
    if isinstance(ending.error, Preempted):
        return f"{message}; run the same command again to resume in {ending.folder}"
    if ending.status == INTERRUPTED:
        return f"interrupted; run the same command again to resume in {ending.folder}"
    if ending.status != 1:
        return message
    where = ending.trace or f"The traceback is in {ending.folder / 'traceback.txt'}"
    return f"{type(ending.error).__name__}: {message}\n{where}"
