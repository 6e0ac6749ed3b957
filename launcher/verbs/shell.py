"""Open a shell on a node as a recipe's job would have it: variables, modules, secrets, container, GPUs. For debugging.

Nothing is written and nothing of the recipe is run. --dry-run prints the lines and needs no Slurm.

Examples:
  vfm-launch shell R cluster=dgx_h100
"""

import argparse
import sys
from typing import TYPE_CHECKING

from launcher.request.request import add_arguments as add_asked

if TYPE_CHECKING:
    from launcher.plan.launch import Launch
    from launcher.render.job import SlurmJob


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which recipe, where, and as which of its jobs."""
    add_asked(parser)
    parser.add_argument(
        "--job", metavar="NAME", help="job of a workflow to stand in for (default: the one on most GPUs)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be run")


def run(arguments: argparse.Namespace) -> int:
    """The exit status of the shell."""
    from launcher.plan.launch import prepare
    from launcher.render.script import shell_script
    from launcher.request.request import parse_request
    from launcher.slurm import slurm
    from nemo_vfm.core.errors import UserError

    wanted = parse_request(arguments)
    if wanted.nodes is not None or wanted.gpus is not None:
        raise UserError("a shell runs on one node; leave out nodes and gpus")
    if wanted.sweep or wanted.parts or wanted.profile:
        raise UserError("a shell is for one run, which you start yourself; leave out --sweep, --parts and --profile")
    try:
        text = shell_script(_job(prepare(wanted), arguments.job))
    except ValueError as error:
        raise UserError(str(error)) from error
    if arguments.dry_run:
        sys.stdout.write(text)
        return 0
    return slurm.interactive(text)


def _job(launch: "Launch", name: str | None) -> "SlurmJob":
    from launcher.request.cluster import Slurm
    from launcher.state import secret_files
    from nemo_vfm.core.errors import UserError

    if not isinstance(launch.where, Slurm):
        raise UserError("cluster=local is this machine, where you already have a shell; name a Slurm cluster")
    if found := [*secret_files.objections(launch.where.secrets), *launch.unknown]:
        raise UserError("; ".join(found))
    jobs = dict(zip((share.name for share in launch.shares), launch.jobs(), strict=True))
    if not jobs:
        raise UserError(f"give these first: {', '.join(launch.work.missing)}")
    if name is not None and name not in jobs:
        raise UserError(f"there is no job {name}; the jobs are {', '.join(jobs)}")
    widest = max(launch.shares, key=lambda share: (share.gpus_per_node, share.ranks)).name
    return jobs[name or widest]
