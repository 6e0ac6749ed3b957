"""Write the report of a run folder again, and print its path; for a sweep, that of all its runs and its table."""

import argparse
import sys
from pathlib import Path

from nemo_vfm.core.sanitize import printable

_LONGEST = 4096  # of a path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run folder."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder, such as runs/quickstart")


def run(arguments: argparse.Namespace) -> int:
    """Read what the run left and write `report.html`; of a sweep, `sweep.json`."""
    from nemo_vfm.core.errors import RunFolderError
    from nemo_vfm.core.types.job import RECIPE, SWEEP
    from nemo_vfm.runtime import sweep_table
    from nemo_vfm.runtime.compared_runs import show_sweep

    if (arguments.folder / SWEEP).is_file():
        found = sweep_table.gather_rows(arguments.folder)
        show_sweep(list(found["axes"]), found["points"], arguments.folder)
        return 0
    if not (arguments.folder / RECIPE).is_file():
        raise RunFolderError(f"{arguments.folder} is not a run folder: it has no {RECIPE}")
    from nemo_vfm.report import page

    sys.stdout.write(f"{printable(str(page.write(arguments.folder)), _LONGEST)}\n")
    return 0
