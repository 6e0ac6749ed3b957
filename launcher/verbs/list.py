"""List launches, the latest first: where, when, on which cluster, and the state of their jobs."""

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.state.launch_folder import KeptLaunch

_DEEPEST = 4  # folders below one that is asked for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to look."""
    parser.add_argument("folders", metavar="DIR", type=Path, nargs="*", default=[],
                        help="run folders, or folders that contain them (default: runs/)")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Look at every folder; nothing is written anywhere."""
    from launcher.columns import names_first, say
    from launcher.state.launch_folder import read
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.log import scrub

    roots = arguments.folders or [Path("runs")]
    for root in roots:
        if not root.is_dir():
            raise UserError(f"there is no folder {root}; give the folder that your runs are in: vfm-launch list DIR")
    found = []
    for folder in dict.fromkeys(one for root in roots for one in _below(root, _DEEPEST)):
        try:
            found.append(read(folder))
        except UserError as error:  # the others can still be listed
            sys.stderr.write(f"{scrub(str(error))}\n")
    if not found:
        say(f"no launches in {', '.join(map(str, roots))}")
        return 0
    found.sort(key=lambda kept: kept.values["created"], reverse=True)
    heads = ("run", "launch", "cluster", "created", "jobs", "now")
    names_first([heads, *map(_row, found)], shutil.get_terminal_size((100, 40)).columns)
    return 0


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "launch" / "launch.json").is_file():
        yield folder
    elif depth:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                yield from _below(child, depth - 1)


def _row(kept: "KeptLaunch") -> tuple[str, ...]:
    from launcher.slurm.job_status import queue_of, states

    queue, _ = queue_of(kept)
    found = states(kept, queue)
    now = next((one for one in found if not one.done), found[-1])
    name = f"{now.name}: " if len(found) > 1 and not now.done else ""
    run_dir = kept.run_dir
    short = run_dir.relative_to(Path.cwd()) if run_dir.is_relative_to(Path.cwd()) else run_dir
    done = sum(one.done for one in found)
    return (str(short), kept.values["id"], kept.values["words"]["cluster"],
            kept.values["created"][:16].replace("T", " "), f"{done}/{len(found)}", f"{name}{now.state}")  # fmt: skip
