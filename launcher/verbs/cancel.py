"""Cancel a launch's waiting and running jobs; `vfm-launch retry` resumes from their last checkpoints."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which launch."""
    parser.add_argument("run", metavar="RUN", type=Path, help="its run folder")


def run(arguments: argparse.Namespace) -> int:
    """0 also where nothing was left to cancel."""
    from launcher.columns import say
    from launcher.state.launch_folder import read
    from launcher.state.submission import cancel

    kept = read(arguments.run)
    live = cancel(kept)
    for job in live:
        say(f"cancelled job {job.id} ({job.name}), which was {job.state}")
    if not live:
        say(f"{kept.run_dir} has no queued or running job")
    return 0
