"""Show the state of a launch: each job, its step, speed and ETA, the slowest rank, the last checkpoint, its attempts.

Slurm is asked while it remembers the job; accounting never is. Without Slurm, what the run folder says is shown.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.columns import say, span, table

if TYPE_CHECKING:
    from launcher.slurm.job_status import Progress

_MOST = 8  # attempts that are shown
_MAX_RUNS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which launch."""
    parser.add_argument("run", metavar="RUN", type=Path, help="its run folder")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Look, and change nothing."""
    from launcher.slurm.job_status import looked_at, queue_of, run_states, states
    from launcher.state.launch_folder import read

    kept = read(arguments.run)
    queue, why = queue_of(kept)
    found = states(kept, queue)
    if arguments.json:
        runs = run_states(kept, queue, kept.attempts()) if kept.runs else []
        whole = {
            "run_dir": str(kept.run_dir), "id": kept.values["id"], "without_slurm": why or None,
            "jobs": [asdict(one) | {"done": one.done, "progress": asdict(looked_at(kept, one.name))} for one in found],
            "runs": [{"name": name, "state": word, "progress": asdict(at)} for name, word, at in runs],
            "attempts": [asdict(one) for one in kept.attempts()],
        }  # fmt: skip
        sys.stdout.write(f"{json.dumps(whole, indent=1)}\n")
        return 0
    say(f"{kept.run_dir}  launch {kept.values['id']} on {kept.values['words']['cluster']}, {kept.values['created']}")
    if why:
        say(why)
    # The job whose work is of interest: the one that runs, else the first that has ended badly or waits to go on.
    left = next((one for one in found if not one.done), found[-1] if found[-1].done else None)
    now = next((one for one in found if one.state == "running"), left)
    if now is not None and now.ended is None and now.state != "running" and now.number:
        now = None
    width = max(len(one.name) for one in found)
    for one in found:
        table([(one.name.ljust(width), f"job {one.number}" if one.number else "", one.state.ljust(10), one.more)])
        if one is now and not kept.runs:
            _say_progress(looked_at(kept, one.name))
    if kept.runs:
        _say_runs(run_states(kept, queue, kept.attempts()))
    attempts = kept.attempts()
    if attempts:
        say("attempts" + (f", the last {_MOST} of {len(attempts)}" if len(attempts) > _MOST else ""))
        rows = [(one.time, one.job, one.kind, "" if one.step in ("", "-1") else f"step {one.step}", one.nodes,
                 one.sentence) for one in attempts[-_MOST:]]  # fmt: skip
        table(rows, indent=2)
    return 0


def _say_progress(found: "Progress") -> None:
    from launcher.slurm.job_status import silence

    if found.step is not None:
        of = f" of {found.total_steps:,}" if found.total_steps else ""
        pace = f", {found.step_s:.3g} s a step" if found.step_s else ""
        end = f", done in {span(found.left_s)}" if found.left_s is not None else ""
        say(f"  step {found.step:,}{of}{pace}{end}")
    rates = [f"{value:,.3g} {name.replace('_per_s', ' a second')}" for name, value in found.rates.items()]
    if found.loss is not None or rates:
        say("  " + ", ".join([*([f"loss {found.loss:.4g}"] if found.loss is not None else []), *rates]))
    if found.checkpoint is not None and found.checkpoint_age_s is not None:
        say(f"  last checkpoint: step {found.checkpoint:,}, {span(found.checkpoint_age_s)} ago")
    for text in (found.slowest, silence(found), *(f"rank {rank} {doing}" for rank, doing in found.elsewhere.items())):
        if text:
            say(f"  {text}")


def _say_runs(found: "list[tuple[str, str, Progress]]") -> None:
    """Those that are not done first, where there are too many for a screen."""
    shown = found if len(found) <= _MAX_RUNS else sorted(found, key=lambda one: one[1] == "done")[:_MAX_RUNS]
    rows = []
    for name, word, at in shown:
        of = f" of {at.total_steps:,}" if at.total_steps else ""
        step = f"step {at.step:,}{of}" if at.step is not None else ""
        rows.append((name, word, ", ".join(filter(None, [step, f"loss {at.loss:.4g}" if at.loss is not None else ""]))))
    table(rows, indent=2)
    if len(found) > len(shown):
        say(f"  and {len(found) - len(shown)} more; nemo-vfm report shows all")
