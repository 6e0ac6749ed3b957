# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Submit a recipe: `vfm-launch submit RECIPE [CHANGE ...] cluster=NAME nodes=N`. Repeat the command to resume.

A workflow becomes a chain of jobs, one per step. --dry-run writes nothing and needs no Slurm: it prints the scripts,
byte for byte, on standard output, and what was found out on standard error.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.remote.words import add_arguments as add_ssh
from launcher.request.request import add_arguments as add_asked

if TYPE_CHECKING:
    from launcher.plan.launch import Launch
    from launcher.plan.preflight import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run and where."""
    add_asked(parser)
    add_ssh(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the scripts and the checks; write nothing")


def run(arguments: argparse.Namespace) -> int:
    """0 where it was submitted, or shown; 2 where it cannot be."""
    from launcher.plan.launch import prepared
    from launcher.remote.words import host
    from launcher.request.request import parse_request

    if host(arguments) is not None:
        from launcher.remote.send import submit_there

        return submit_there(arguments)
    return launched(prepared(parse_request(arguments)), dry_run=arguments.dry_run)


def launched(launch: "Launch", *, dry_run: bool) -> int:
    """Look at a launch, say what was found, and submit it where nothing is wrong."""
    from launcher.request.cluster import Local
    from launcher.state.launch_folder import read
    from launcher.state.submission import carry_out, checked, tell

    texts, found = checked(launch)
    _say(found)
    if dry_run:
        _show(launch, texts)
        return 0
    if any(one.wrong for one in found):
        sys.stderr.write("nothing was submitted\n")
        return 2
    status = carry_out(launch, texts)
    if not isinstance(launch.where, Local):
        tell(read(launch.run_dir))
    return status


def _say(found: "Sequence[Finding]") -> None:
    """On standard error: standard output is for scripts."""
    width = max(len(one.about) for one in found)
    for one in found:
        mark = "PROBLEM" if one.wrong else "       "
        first, *rest = one.text.splitlines() or [""]
        sys.stderr.write(f"{mark} {one.about:<{width}}  {first}\n")
        sys.stderr.writelines(f"{' ' * (width + 10)}{line}\n" for line in rest)


def _show(launch: "Launch", texts: Mapping[str, str]) -> None:
    """One script as it is; several with a line before each that says whose it is."""
    from launcher.request.cluster import Local

    if isinstance(launch.where, Local):
        from launcher.local_run import lines

        sys.stdout.write(lines(launch))
    for name, text in texts.items():
        if len(texts) > 1:
            sys.stdout.write(f"# -------- {launch.folder / name}.sh\n")
        sys.stdout.write(text)
