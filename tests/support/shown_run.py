"""Runs a job as `nemo-vfm run` does, without a recipe."""

from nemo_vfm.cli.verbs.run import show
from nemo_vfm.core.types.job import Job, Run
from nemo_vfm.runtime.recipe_run import perform_recorded
from nemo_vfm.runtime.run_folder import Status


def perform(job: Job, run: Run, status: Status) -> int:
    """Run it, say how it ended; the exit status."""
    ending = perform_recorded(job, run, status)
    show(ending)
    return ending.status
