# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A recipe and the values to sweep in, one run folder a combination and a table of all of them out.

Every combination is checked before the first one runs. Each runs in a process of its own, by the command that a user
would type, so that one that dies takes nothing with it, and that a cluster can run them as an array: `sweep.json` keeps
the words. The same sweep again goes on; with more values it grows.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.cli.arguments import composed_recipe, run_folder
from nemo_vfm.cli.grid import Axis, Point, axes, points
from nemo_vfm.core.errors import RunFolderError, UserError
from nemo_vfm.core.files import read_json, write_json
from nemo_vfm.core.log import info
from nemo_vfm.core.secret import conceal_keys
from nemo_vfm.core.types import Json

NAME = "sweep.json"
SCHEMA = "nemo_vfm.sweep/1"
INTERRUPTED = 130
_FIRST = ("val_loss", "loss")  # figures that stand first in the table, and that say which run is best


def run_sweep(arguments: argparse.Namespace) -> int:
    """Check all, run all, print the table; 0 where every run ended with 0, else the status of the first that did not.

    Raises:
        UserError: the sweep is not understood, or a combination is wrong.
    """
    changes = [word for word in arguments.sweep if word.startswith(("~", "run_dir="))]  # these sweep nothing
    arguments.overrides = [*arguments.overrides, *changes]
    swept = axes([word for word in arguments.sweep if word not in changes])
    grid = points(swept)
    folder, place = _folder(arguments, swept)
    _earlier(folder / NAME)
    _check_all(arguments, grid, place)
    results: list[Json] = []
    try:
        for number, point in enumerate(grid, 1):
            info(f"[{number}/{len(grid)}] {point.name}")
            results.append(_run(arguments, point, folder, place))
            _keep(folder, arguments.recipe, swept, results)
            if results[-1]["exit_status"] == INTERRUPTED:
                break
    finally:
        if results:
            _print_table(swept, results, folder)
    return next((int(result["exit_status"]) for result in results if result["exit_status"]), 0)


def _folder(arguments: argparse.Namespace, swept: Sequence[Axis]) -> tuple[Path, Path]:
    """Where the runs lie: what `run_dir` says, else beside the recipe's own folder; and the same as it is written down.

    There variables of the environment stay names, since each run keeps its own `run_dir`.
    """
    from nemo_vfm.config.interpolate import resolve
    from nemo_vfm.config.tree import plain

    given = [word.partition("=")[0] for word in arguments.overrides]
    if both := [axis.path for axis in swept if axis.path in given]:
        raise UserError(f"{both[0]} is set by a change and by --sweep; leave one of them out")
    composed = composed_recipe(arguments, [f"{axis.path}={axis.choices[0]}" for axis in swept])
    folder = run_folder(composed)
    place = Path(str(plain(resolve(composed.root, keep_env=True)[0].items["run_dir"])))
    if "run_dir" not in given:
        folder, place = (path.parent / f"{path.name}-sweep" for path in (folder, place))
    if (folder / "recipe.yaml").is_file():
        raise RunFolderError(f"{folder} holds a run, not a sweep; take another run_dir")
    return folder, place


def _check_all(arguments: argparse.Namespace, grid: Sequence[Point], place: Path) -> None:
    """Raises RecipeError with the problems of the first combination that is wrong: before hours of others have run."""
    from nemo_vfm.config import RecipeError, build, trust_list

    for point in grid:
        try:
            build(composed_recipe(arguments, [*point.words(), _run_dir(place, point)]), trust_list(arguments.trust))
        except RecipeError as error:
            raise UserError(f"{' '.join(point.words())}\n{error}\nNothing was run.") from error


def _run(arguments: argparse.Namespace, point: Point, folder: Path, place: Path) -> Json:
    """Run one combination to its end and say how it went."""
    began = time.monotonic()
    options = [f"--{name}={value}" for name in ("conf", "overlay", "trust", "allow") for value in vars(arguments)[name]]
    words = [arguments.recipe, *arguments.overrides, *point.words(), _run_dir(place, point), *options]
    # Our own interpreter and module; the words are arguments, never a shell's. Unlike `nemo-vfm` itself, `-m` would
    # import from the working directory first, where a stranger's yaml.py may lie.
    apart = [] if {"", str(Path.cwd())} & set(sys.path) else ["-P"]
    child = subprocess.Popen([sys.executable, *apart, "-m", "nemo_vfm", "run", *words])  # noqa: S603
    try:
        status = child.wait()
    except KeyboardInterrupt:  # the terminal has told the child, too: it leaves its folder in order
        child.wait()
        status = INTERRUPTED
    told = _status(folder / point.name)
    return {
        "name": point.name,
        "choices": {path: conceal_keys(choice) for path, choice in point.choices.items()},
        "words": [conceal_keys(word) for word in words],
        "exit_status": status if status >= 0 else 128 - status,
        "state": _state(status, told),
        "seconds": round(time.monotonic() - began, 1),
        "figures": told.get("figures", {}) if status == 0 else {},
    }


def _state(status: int, told: Json) -> str:
    """How it ended: its own word where it could still say one."""
    if status < 0:
        return f"killed by signal {-status}"
    return "done" if status == 0 else str(told.get("state", "failed"))


def _run_dir(place: Path, point: Point) -> str:
    return f"run_dir={place / point.name}"


def _status(folder: Path) -> Json:
    try:
        return read_json(folder / "status.json")
    except (OSError, ValueError):  # it was refused before it had a folder
        return {}


def _keep(folder: Path, recipe: str, swept: Sequence[Axis], results: Sequence[Json]) -> None:
    """Write what is known so far; runs of an earlier, smaller sweep in the same folder stay listed."""
    file = folder / NAME
    known = _earlier(file) | {result["name"]: result for result in results}
    axes_ = {axis.path: [conceal_keys(choice) for choice in axis.choices] for axis in swept}
    write_json(file, {"schema": SCHEMA, "recipe": recipe, "axes": axes_, "points": list(known.values())})


def _earlier(file: Path) -> dict[str, Json]:
    """The runs that the table of an earlier sweep lists, by name."""
    try:
        return {result["name"]: result for result in read_json(file)["points"]} if file.is_file() else {}
    except (ValueError, LookupError, TypeError) as error:
        raise RunFolderError(f"{file} is damaged; delete it, the runs beside it stay and are listed anew") from error


def _print_table(swept: Sequence[Axis], results: Sequence[Json], folder: Path) -> None:
    """One row a run: its values, how it ended, its figures; the best one by validation loss, else loss, has a star."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    figures = _figures(results)
    best = _best(results)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for axis in swept:
        table.add_column(axis.path, overflow="fold")
    table.add_column("state")
    for name in (*figures, "seconds"):
        table.add_column(name, justify="right")
    for result in results:
        numbers = [_number(result["figures"].get(name)) for name in figures]
        star = " *" if best == result else ""
        state = f"{result['state']}{star}"
        table.add_row(*result["choices"].values(), state, *numbers, f"{result['seconds']:.0f}")
    Console(file=sys.stdout, markup=False, highlight=False).print(table)
    legend = f"* lowest {_measure(results)}. " if best is not None else ""
    sys.stdout.write(f"{legend}The runs are in {folder}, the table in {folder / NAME}\n")


def _figures(results: Sequence[Json]) -> list[str]:
    """Up to five figures that any run has: losses first, then the others as the runs name them."""
    names = list(dict.fromkeys(name for result in results for name in result["figures"]))
    losses = [name for wanted in _FIRST for name in names if name.split("/")[-1] == wanted]
    return [*losses, *(name for name in names if name not in losses)][:5]


def _measure(results: Sequence[Json]) -> str:
    """The figure that says which run is best; empty where none does."""
    first = next(iter(_figures(results)), "")
    return first if first.split("/")[-1] in _FIRST else ""


def _best(results: Sequence[Json]) -> Json | None:
    measure = _measure(results)
    ranked = [result for result in results if measure in result["figures"]]
    return min(ranked, key=lambda result: float(result["figures"][measure])) if len(ranked) > 1 else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
