"""Submit the unfinished jobs of a launch again, with the same recipe, scripts and code; a chain resumes at its failure.

For a recipe or code that you have changed, submit it again instead.
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which launch."""
    parser.add_argument("run", metavar="RUN", type=Path, help="its run folder")


def run(arguments: argparse.Namespace) -> int:
    """0 also where everything is done."""
    from launcher.columns import say
    from launcher.slurm.job_status import live_jobs, states
    from launcher.state.conflicts import still_there
    from launcher.state.launch_folder import read, require_own, require_unchanged, submission_lock
    from launcher.state.submission import enqueue, tell
    from nemo_vfm.core.errors import UserError

    kept = read(arguments.run)
    if kept.is_local:
        raise UserError(f"{kept.run_dir} ran without a queue; repeat the submit command to resume")
    require_own(kept)
    with submission_lock(kept.run_dir):
        if there := list(still_there(kept)):
            raise UserError("; ".join(there))
        found = states(kept, live_jobs(kept))
        left = [job for job, one in zip(kept.jobs, found, strict=True) if not one.done]
        if not left:
            say(f"{kept.run_dir} is complete")
            return 0
        require_unchanged(kept, left)
        enqueue(kept, left, {one.name: one.left for one in found if one.left})
    tell(kept, {job["name"] for job in left})
    return 0
