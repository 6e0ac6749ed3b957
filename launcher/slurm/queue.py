"""Lists what Slurm knows of a launch's jobs, including those that its own jobs submitted."""

from launcher.slurm import slurm
from launcher.slurm.slurm import Queued
from launcher.state.launch_folder import KeptLaunch

PATIENCE_S = 600.0  #: that whoever waits for a job goes on asking while Slurm refuses: controllers are restarted


def queued(kept: KeptLaunch) -> dict[str, Queued]:
    """Jobs and tasks of arrays by their numbers.

    A job notes before its end which other goes on with its work: so the folder is read once more after each question.

    Raises:
        UserError: Slurm does not answer.
    """
    while True:
        ids = kept.slurm_ids()
        found = slurm.queued(ids)
        kept.look_again()
        if kept.slurm_ids() == ids:
            return found
