"""Submit a recipe: `vfm-launch submit RECIPE [CHANGE ...] cluster=NAME nodes=N`. Repeat the command to resume.

A workflow becomes a chain of jobs, one per step. --dry-run writes nothing and needs no Slurm: it prints what each job
would take and what was found out. With --print-script, standard output is what would be submitted, byte for byte.

Examples:
  vfm-launch submit quickstart cluster=cpu_slurm --dry-run             # what each job would take, and problems
  vfm-launch submit R cluster=dgx_h100 nodes=16 optimizer.lr=1e-4      # submit; the same command again resumes
  vfm-launch submit R cluster=ours --dry-run --print-script            # what would be submitted, byte for byte
  vfm-launch submit --ssh HOST R cluster=ours                          # on a login node
"""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING

from launcher.columns import names_first, pluralise, say
from launcher.remote.words import add_arguments as add_ssh
from launcher.request.request import add_arguments as add_asked
from nemo_vfm.core.program import narrow_lines

if TYPE_CHECKING:
    from launcher.plan.launch import Launch
    from launcher.plan.preflight import Finding
    from launcher.request.cluster import Slurm

_UNFOLDED = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run and where."""
    add_asked(parser)
    add_ssh(parser)
    add_dry_run(parser)


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """--dry-run, and what it shows."""
    parser.add_argument("--dry-run", action="store_true", help="print jobs, cost and problems; write nothing")
    parser.add_argument("--print-script", action="store_true", help="with --dry-run: print the scripts, too")


def run(arguments: argparse.Namespace) -> int:
    """0 where it was submitted, or shown; 2 where it cannot be."""
    from launcher.plan.launch import prepare
    from launcher.remote.words import host
    from launcher.request.request import parse_request

    require_dry_run(arguments)
    if host(arguments) is not None:
        from launcher.remote.send import submit_there

        return submit_there(arguments)
    return run_launch(prepare(parse_request(arguments)), dry_run=arguments.dry_run, with_script=arguments.print_script)


def require_dry_run(arguments: argparse.Namespace) -> None:
    """Nobody who wants to see a script should submit it by mistake."""
    from nemo_vfm.core.errors import UserError

    if arguments.print_script and not arguments.dry_run:
        raise UserError("--print-script needs --dry-run; add it, or look at launch/*.sh in the run folder afterwards")


def run_launch(launch: "Launch", *, dry_run: bool, with_script: bool = False) -> int:
    """Look at a launch, say what was found, and submit it where nothing is wrong."""
    from launcher.request.cluster import Local
    from launcher.state.launch_folder import read
    from launcher.state.submission import carry_out, check_launch, tell

    texts, found = check_launch(launch, dry_run=dry_run)
    with nullcontext() if dry_run and not with_script else redirect_stdout(sys.stderr):
        _summarize(launch, found)
        if dry_run:
            wrong = sum(one.wrong for one in found)
            say()
            say(f"nothing was written; {pluralise(wrong, 'PROBLEM')} would prevent its submission"
                if wrong else "nothing was written; no PROBLEM was found")  # fmt: skip
    if dry_run:
        if not with_script:
            say("see what is submitted: add --print-script")
            return 0
        if isinstance(launch.where, Local):
            from launcher.local_run import lines

            sys.stdout.write(lines(launch))
        for name, text in texts.items():  # one script as it is; several with a line before each that says whose it is
            sys.stdout.write(f"# -------- {launch.folder / name}.sh\n{text}" if len(texts) > 1 else text)
        return 0
    if any(one.wrong for one in found):
        sys.stderr.write("nothing was submitted\n")
        return 2
    status = carry_out(launch, texts)
    if not isinstance(launch.where, Local):
        tell(read(launch.run_dir))
    return status


def _summarize(launch: "Launch", found: "Sequence[Finding]") -> None:
    """What each job takes, then what was found; folded on a terminal, so that elsewhere it can be searched."""
    from launcher.request.cluster import Slurm

    width = shutil.get_terminal_size((_UNFOLDED, 40)).columns
    jobs = f"{pluralise(len(launch.shares), 'job')}, " if launch.shares else ""
    say(f"{launch.name_of_recipe} on {launch.request.cluster}: {jobs}run folder {launch.run_dir}")
    say()
    if isinstance(launch.where, Slurm) and launch.shares:
        names_first([*_sizes(launch, launch.where)], width)
        say()
    about = max(len(one.about) for one in found)
    for one in found:
        mark = "PROBLEM" if one.wrong else "       "
        first, *rest = _fold(one.text, width - about - 10)
        say(f"{mark} {one.about:<{about}}  {first}")
        for line in rest:
            say(f"{' ' * (about + 10)}{line}")


def _sizes(launch: "Launch", where: "Slurm") -> Iterator[tuple[str, ...]]:
    """A line for each job; what is left to Slurm, which was not asked, is `?`."""
    yield ("job", "nodes", "tasks/node", "cores/task", "GPUs/node", "memory/node", "time limit")
    memory = f"{where.memory_gb} GB" if where.memory_gb else "all" if where.exclusive else "a share"
    for share in launch.shares:
        name = f"{share.name} x {share.array}" if share.array else share.name
        cores = "?" if where.cpus_per_node is None else f"{share.cpus_per_task}"
        gpus = "?" if share.on_gpu and where.gpus_per_node is None else f"{share.gpus_per_node}"
        yield (name, f"{share.nodes}", f"{share.tasks_per_node}", cores, gpus, memory, f"{where.time}")


def _fold(text: str, width: int) -> Iterator[str]:
    """Lines of at most so many letters; what is indented, as a place in a file is, is folded at its caret alone."""
    for line in narrow_lines(text.splitlines() or [""], max(width, 20)):
        if len(line) <= width or line.startswith(" "):
            yield line
        else:
            yield from textwrap.wrap(line, max(width, 20), break_long_words=False, break_on_hyphens=False)
