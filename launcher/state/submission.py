"""Submits a launch: writes its folder, puts its jobs into the queue and records their numbers."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher.columns import say, table
from launcher.local_run import run_here
from launcher.plan.launch import Launch
from launcher.plan.preflight import Finding, preflight
from launcher.render.script import script
from launcher.request.cluster import Local
from launcher.slurm import slurm
from launcher.slurm.job_status import live_jobs
from launcher.slurm.slurm import QueuedJob
from launcher.state.conflicts import objections
from launcher.state.launch_folder import KeptLaunch, submission_lock, write
from nemo_vfm.core.errors import UserError


def check_launch(launch: Launch, *, dry_run: bool = False) -> tuple[dict[str, str], Sequence[Finding]]:
    """The text of each job's script by its share's name, and what the preflight found."""
    try:
        texts = {} if isinstance(launch.where, Local) else {
            share.name: script(job) for share, job in zip(launch.shares, launch.jobs(), strict=True)
        }  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from error
    return texts, preflight(launch, dry_run=dry_run)


def carry_out(launch: Launch, scripts: Mapping[str, str]) -> int:
    """Run a launch here, with the status that it ends with, or put it into the queue."""
    if isinstance(launch.where, Local):
        return run_here(launch)
    submit(launch, scripts)
    return 0


def submit(launch: Launch, scripts: Mapping[str, str]) -> None:
    """Write the folder and put every job into the queue."""
    with submission_lock(launch.run_dir):
        if found := objections(launch):  # again, now that nobody else submits here
            raise UserError("; ".join(found))
        kept = write(launch, scripts)
        enqueue(kept, kept.jobs)


def cancel(kept: KeptLaunch) -> list[QueuedJob]:
    """End the jobs of a launch that wait or run, and note it; which they were."""
    live: dict[str, QueuedJob] = {}
    while more := {number: job for number, job in live_jobs(kept).items() if job.waits_or_runs and number not in live}:
        slurm.cancel([*reversed(more)])  # the last first: none begins because the one before has ended
        live |= more  # and once more: a job may have submitted another before it was cancelled
    if live:
        with submission_lock(kept.run_dir):
            kept.record_cancellation({job.array for job in live.values()})
    return [*live.values()]


def enqueue(
    kept: KeptLaunch, jobs: Sequence[dict[str, Any]], tasks: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> None:
    """Put these jobs of a launch into the queue, each behind the one that it waits for, where that is among them.

    `tasks` says of jobs that are arrays, by their names, which tasks; where one is not named, all of them.
    """
    numbers: dict[str, str] = {}
    for job in jobs:
        after = [numbers[job["waits_for"]]] if job["waits_for"] in numbers else []
        words = []
        if job["name"] in tasks:  # so many at once as the cluster's file says; this goes before what the script says
            most = kept.values["cluster"].get("max_at_once")
            words = [f"--array={','.join(map(str, tasks[job['name']]))}{f'%{most}' if most else ''}"]
        script, workdir = kept.folder / job["script"], Path(kept.values["workdir"])
        try:
            numbers[job["name"]] = slurm.submit(script, workdir, after=after, words=words)
        except UserError as error:
            try:
                slurm.cancel([*numbers.values()])
            except UserError as refused:
                raise UserError(f"{refused}; cancel them by hand: scancel {' '.join(numbers.values())}") from refused
            raise UserError(f"{error}. Nothing of {kept.run_dir} is in the queue") from error
        kept.record_submission(job["name"], numbers[job["name"]])


def tell(kept: KeptLaunch, names: Collection[str] | None = None) -> None:
    """What was submitted, and how to look at it; `names` are the jobs that were, None all."""
    say(f"{kept.run_dir} is launch {kept.values['id']}")
    numbers = {job["name"]: job["slurm"][-1] for job in kept.jobs if names is None or job["name"] in names}
    rows = [
        (name, f"job {number}", f"after {numbers[job['waits_for']]}" if job["waits_for"] in numbers else "")
        for job in kept.jobs
        if (number := numbers.get(name := job["name"]))
    ]
    table(rows, indent=2)
    say(f"look at it: vfm-launch status {kept.run_dir}, or vfm-launch logs -f {kept.run_dir}")
