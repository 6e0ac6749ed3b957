"""Write one page about several runs: how they ended, in what their recipes differ, their curves over each other.

Of a sweep it takes all runs. A sweep writes this page itself when it ends, as report.html in its folder.

Examples:
  nemo-vfm compare runs/a runs/b                              # comparison.html in the working directory
  nemo-vfm compare runs/small-sweep runs/old --out page.html  # the runs of a sweep and another, elsewhere
"""

import argparse
import sys
from pathlib import Path

from nemo_vfm.core.errors import RunFolderError
from nemo_vfm.core.sanitize import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The runs, and where the page goes."""
    parser.add_argument("folders", metavar="RUN", type=Path, nargs="+", help="run folders, or folders of sweeps")
    parser.add_argument("--out", metavar="FILE.html", type=Path, default=Path("comparison.html"),
                        help="the page (default: comparison.html)")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Read what the runs left and write the page; nothing else is written."""
    from nemo_vfm.core.log import warn
    from nemo_vfm.core.types.job import RECIPE, SWEEP
    from nemo_vfm.runtime import sweep_table
    from nemo_vfm.runtime.compared_runs import write_comparison

    folders: dict[str, Path] = {}
    left_out: list[str] = []
    for folder in arguments.folders:
        if (folder / SWEEP).is_file():
            points = (folder / row["name"] for row in sweep_table.gather_rows(folder)["points"])
            folders |= {str(point): point for point in points if (point / RECIPE).is_file()}
        elif (folder / RECIPE).is_file():
            folders[str(folder)] = folder
        elif folder.exists():  # of `sweep/*`, the sweep's own files and the points that have not begun
            left_out.append(str(folder))
        else:
            raise RunFolderError(f"{folder} is not a run folder: there is nothing")
    if left_out:
        warn(f"left out, since they are no run folders with a recipe.yaml: {', '.join(left_out)}")
    if len(folders) < 2:
        raise RunFolderError(f"a comparison needs two runs, but got {len(folders)}; give more run folders")
    parts = [Path(path).parts for path in folders]
    shared = 0  # the folders that all lie in
    while all(len(one) > shared + 1 and one[shared] == parts[0][shared] for one in parts):
        shared += 1
    short = [printable(str(Path(*one[shared:])), 1000) for one in parts]
    names = dict(zip(short, folders.values(), strict=True))
    page = write_comparison(arguments.out, " and ".join(names) if len(names) == 2 else "Runs", names)
    sys.stdout.write(f"{printable(str(page), 4096)}\n")
    return 0
