"""Submit a launch once more into another run folder: the same recipe, cluster, size and code as they were then.

Examples:
  vfm-launch rerun RUN run_dir=runs/again
"""

import argparse
from pathlib import Path

from launcher.request.request import add_allow_write
from launcher.verbs.submit import add_dry_run, require_dry_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which launch, and where to."""
    parser.add_argument("run", metavar="RUN", type=Path, help="its run folder")
    parser.add_argument("to", metavar="run_dir=DIR", help="run folder of the new launch")
    parser.add_argument("typed", metavar="KEY=VALUE", nargs="*", default=[],
                        help="values of the recipe that only you can give, such as models.python.strict=false; "
                             "give them again")  # fmt: skip
    parser.add_argument("--trust", metavar="PREFIX", action="append", default=[],
                        help="packages to trust again; their code will run")  # fmt: skip
    parser.add_argument("--allow-host", metavar="HOST[=VARIABLE]", action="append", default=[],
                        help="hosts that it may contact again")  # fmt: skip
    add_allow_write(parser)
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """As `submit`."""
    from launcher.plan.rerun import again
    from launcher.state.launch_folder import read
    from launcher.verbs.submit import run_launch

    require_dry_run(arguments)
    to = Path(arguments.to.removeprefix("run_dir="))
    return run_launch(
        again(read(arguments.run), to, arguments.trust, arguments.allow_host, arguments.typed),
        dry_run=arguments.dry_run,
        with_script=arguments.print_script,
    )
