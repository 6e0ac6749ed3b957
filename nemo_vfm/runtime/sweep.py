"""Runs a recipe once for each combination of swept values, and writes a table of all runs.

Every combination is checked before the first one runs. Each runs in a process of its own, by the command that a user
would type. So a crash affects one run only, and a cluster can run them as an array: `sweep.json` keeps the commands.
The same sweep again resumes; with more values it grows. A signal that asks for an end goes to the run under way, and no
other begins.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.preemption import DEFAULT, EXIT_CODE, INTERRUPTED, handled_by, numbers
from nemo_vfm.core.storage.files import read_json_object
from nemo_vfm.core.types.job import STATUS
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.runtime import sweep_table
from nemo_vfm.runtime.command import composed_recipe, own_command, run_folder
from nemo_vfm.runtime.sweep_points import Point, SweepPlan, sweep_plan


def run_sweep(arguments: argparse.Namespace) -> int:
    """Check all, run all, print the table; 0 where every run did well, else the status of the first that did not."""
    sweep = sweep_plan(arguments)
    sweep_table.read(sweep.folder)  # a damaged table is told before anything runs
    _check_all(sweep)
    rows: list[Json] = []
    heard = _SignalRelay()
    # A terminal that closes, too.
    wanted = [signal.SIGINT, signal.SIGHUP, *numbers(arguments.preempt or DEFAULT)]
    with handled_by(heard.hand_on, wanted):
        for number, point in enumerate(sweep.points, 1):
            info(f"[{number}/{len(sweep.points)}] {point.name}")
            rows.append(_run(sweep, point, heard))
            sweep_table.keep(sweep, rows)
            if heard.signals:
                break
        from nemo_vfm.runtime.compared_runs import show_sweep

        show_sweep([axis.path for axis in sweep.axes], rows, sweep.folder)
    if heard.signals and (left := sum(row["exit_status"] != 0 for row in rows) + len(sweep.points) - len(rows)):
        name = signal.Signals(heard.signals[0]).name
        sys.stderr.write(f"{name} stopped the sweep with {left} of {len(sweep.points)} runs left; run the same command "
                         "again to resume\n")  # fmt: skip
        return INTERRUPTED if heard.signals[0] == signal.SIGINT else EXIT_CODE
    return next((int(row["exit_status"]) for row in rows if row["exit_status"]), 0)


@dataclass(slots=True)
class _SignalRelay:
    """The signals that came, each handed on once to the run that was under way or had just begun."""

    signals: list[int] = field(default_factory=list)
    child: "subprocess.Popen[bytes] | None" = None

    def hand_on(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)
        if self.child is not None:
            self.child.send_signal(number)

    def wait(self, command: Sequence[str]) -> int:
        """Run it; its status. It is in a group of its own, so that a terminal's Ctrl-C reaches it once, by us."""
        self.child = child = subprocess.Popen(command, process_group=0)  # noqa: S603
        try:
            if self.signals:  # came while it was started
                child.send_signal(self.signals[-1])
            return child.wait()
        finally:
            self.child = None


def _check_all(sweep: SweepPlan) -> None:
    """Raises UserError with the problems of the first combination that is wrong: before hours of others have run."""
    from nemo_vfm.config import RecipeError, trust_list
    from nemo_vfm.runtime.checks.meta_build import build_on_meta
    from nemo_vfm.runtime.checks.missing_packages import missing_now, refuse_missing
    from nemo_vfm.runtime.user_permissions import permissions

    trust, words = trust_list(sweep.arguments.trust), sweep.arguments.allow_host
    missing = []
    for point in sweep.points:
        try:
            composed = composed_recipe(sweep.arguments_of(point))
            allowed = permissions(words, composed.path)
            job = build_on_meta(composed, trust, allowed)
            missing += missing_now(composed, job, run_folder(composed), trust, allowed)
        except RecipeError as error:
            raise UserError(f"{' '.join(point.words())}\n{error}\nNothing was run.") from error
    refuse_missing(missing)


def _run(sweep: SweepPlan, point: Point, heard: _SignalRelay) -> Json:
    began = time.monotonic()
    status = heard.wait(own_command("run", *sweep.words(point)))
    if -status in heard.signals:  # it came before the run could listen
        status = INTERRUPTED if -status == signal.SIGINT else EXIT_CODE
    result = read_json_object(sweep.folder / point.name / STATUS)
    stopped = {EXIT_CODE: "preempted", INTERRUPTED: "interrupted"}.get(status, "failed")
    state = "done" if status == 0 else str(result.get("state", stopped))  # its own word where it could still say one
    return {
        **sweep_table.waiting_row(sweep, point),
        "exit_status": status if status >= 0 else 128 - status,
        "state": state if status >= 0 else f"killed by signal {-status}",
        "seconds": round(time.monotonic() - began, 1),
        "figures": result.get("figures", {}) if status == 0 else {},
    }
