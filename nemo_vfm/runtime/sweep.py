# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a recipe once for each combination of swept values, and writes a table of all runs.

Every combination is checked before the first one runs. Each runs in a process of its own, by the command that a user
would type. So a crash affects one run only, and a cluster can run them as an array: `sweep.json` keeps the commands.
The same sweep again resumes; with more values it grows.
"""

import argparse
import subprocess
import time

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.preemption import INTERRUPTED
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.runtime import sweep_table
from nemo_vfm.runtime.command import composed_recipe, own_command, run_folder
from nemo_vfm.runtime.sweep_grid import Point
from nemo_vfm.runtime.sweep_points import SweepPlan, sweep_plan


def run_sweep(arguments: argparse.Namespace) -> int:
    """Check all, run all, print the table; 0 where every run ended with 0, else the status of the first that did not.

    Raises:
        UserError: the sweep is not understood, or a combination is wrong.
    """
    sweep = sweep_plan(arguments)
    sweep_table.read(sweep.folder)  # a damaged table is told before anything runs
    _check_all(sweep)
    rows: list[Json] = []
    try:
        for number, point in enumerate(sweep.points, 1):
            info(f"[{number}/{len(sweep.points)}] {point.name}")
            rows.append(_run(sweep, point))
            sweep_table.keep(sweep, rows)
            if rows[-1]["exit_status"] == INTERRUPTED:
                break
    finally:
        if rows:
            from nemo_vfm.runtime.compared_runs import show_sweep

            show_sweep([axis.path for axis in sweep.axes], rows, sweep.folder)
    return next((int(row["exit_status"]) for row in rows if row["exit_status"]), 0)


def _check_all(sweep: SweepPlan) -> None:
    """Raises UserError with the problems of the first combination that is wrong: before hours of others have run."""
    from nemo_vfm.config import RecipeError, trust_list
    from nemo_vfm.runtime.checks.meta_build import built
    from nemo_vfm.runtime.checks.missing_packages import missing_now, refuse_missing
    from nemo_vfm.runtime.user_permissions import permissions

    trust, words = trust_list(sweep.arguments.trust), sweep.arguments.allow_host
    missing = []
    for point in sweep.points:
        try:
            composed = composed_recipe(sweep.alone(point))
            allowed = permissions(words, composed.path)
            job = built(composed, trust, allowed)
            missing += missing_now(composed, job, run_folder(composed), trust, allowed)
        except RecipeError as error:
            raise UserError(f"{' '.join(point.words())}\n{error}\nNothing was run.") from error
    refuse_missing(missing)


def _run(sweep: SweepPlan, point: Point) -> Json:
    """Run one combination to its end and say how it went."""
    began = time.monotonic()
    child = subprocess.Popen(own_command("run", *sweep.words(point)))  # noqa: S603
    status = _waited(child)
    result = sweep_table.result_of(sweep.folder / point.name)
    return {
        **sweep_table.waiting(sweep, point),
        "exit_status": status if status >= 0 else 128 - status,
        "state": _state(status, result),
        "seconds": round(time.monotonic() - began, 1),
        "figures": result.get("figures", {}) if status == 0 else {},
    }


def _waited(child: "subprocess.Popen[bytes]") -> int:
    """Its status. The terminal tells the child of a Ctrl-C, too: it saves, and a second one is the child's as well."""
    interrupted = False
    while True:
        try:
            status = child.wait()
            return INTERRUPTED if interrupted else status
        except KeyboardInterrupt:
            interrupted = True


def _state(status: int, result: Json) -> str:
    """How it ended: its own word where it could still say one."""
    if status < 0:
        return f"killed by signal {-status}"
    return "done" if status == 0 else str(result.get("state", "failed"))
