"""Show the end of a launch's logs; -f follows them, from one job of a chain to the next, until all have ended.

Examples:
  vfm-launch logs RUN -f
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which launch, which of its jobs, how much."""
    parser.add_argument("run", metavar="RUN", type=Path, help="its run folder")
    parser.add_argument("--job", metavar="NAME", help="logs of this job only")
    parser.add_argument(
        "--lines", metavar="N", type=int, default=40, help="lines from the end of each log (default 40)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="follow the logs as they grow")


def run(arguments: argparse.Namespace) -> int:
    """0 also where there is no log yet."""
    from launcher.columns import say
    from launcher.state.launch_folder import read
    from launcher.state.logs import Tail, log_files
    from nemo_vfm.core.errors import UserError

    kept = read(arguments.run)
    if arguments.job and arguments.job not in [job["name"] for job in kept.jobs]:
        names = ", ".join(job["name"] for job in kept.jobs)
        raise UserError(f"{kept.run_dir} has no job {arguments.job}; it has {names}")
    has_logs = bool(log_files(kept, arguments.job))
    if kept.is_local and not has_logs:
        say(f"{kept.run_dir} ran in a terminal, which has its output. See status.json for how it ended and "
            f"traceback.txt for errors; a log is kept when it starts without a terminal")  # fmt: skip
    elif not has_logs and not arguments.follow:
        say(f"{kept.run_dir} has no log yet")
    tail = Tail(kept, arguments.job)
    tail.show(arguments.lines)
    if arguments.follow:
        tail.follow()
    return 0
