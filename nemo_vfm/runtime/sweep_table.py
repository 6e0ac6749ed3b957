"""Writes and reads the state of a sweep's runs: `sweep.json`, and a table for people."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.core.errors import RunFolderError
from nemo_vfm.core.metric_names import Mode, validation_loss
from nemo_vfm.core.secret import conceal_keys
from nemo_vfm.core.storage.files import read_json, read_json_object, write_json
from nemo_vfm.core.types.job import RECIPE, STATUS, SWEEP
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.runtime.recipe_metric import recipe_metric
from nemo_vfm.runtime.sweep_points import Point, SweepPlan

if TYPE_CHECKING:
    from rich.table import Table

_SCHEMA = "nemo_vfm.sweep/1"


def waiting_row(sweep: SweepPlan, point: Point) -> Json:
    """A row of a run that has not begun: values, words, and nothing else yet."""
    return {
        "name": point.name,
        "choices": {path: conceal_keys(choice) for path, choice in point.choices.items()},
        "words": [conceal_keys(word) for word in sweep.words(point)],
        "exit_status": None, "state": "waiting", "seconds": None, "figures": {},
    }  # fmt: skip


def before(sweep: SweepPlan) -> Json:
    """The whole file before any of these runs has begun; what an earlier sweep in the same folder found out stays."""
    return _file(sweep, [waiting_row(sweep, one) for one in sweep.points], is_news=False)


def keep(sweep: SweepPlan, rows: Sequence[Json]) -> None:
    """Write what is known so far; runs of an earlier, smaller sweep in the same folder stay listed."""
    write_json(sweep.folder / SWEEP, _file(sweep, rows, is_news=True))


def _file(sweep: SweepPlan, rows: Sequence[Json], *, is_news: bool) -> Json:
    there = read(sweep.folder)
    known = {row["name"]: row for row in there["points"]} if there else {}
    known |= {row["name"]: row for row in rows if is_news or row["name"] not in known}
    choices = {axis.path: [conceal_keys(choice) for choice in axis.choices] for axis in sweep.axes}
    return {"schema": _SCHEMA, "recipe": sweep.arguments.recipe, "axes": choices, "points": list(known.values())}


def read(folder: Path) -> Json:
    """The file, or None where there is none."""
    file = folder / SWEEP
    try:
        if not file.is_file():
            return None
        found = read_json(file)
        for row in found["points"]:  # each is looked at, since show() and gathered() rely on these
            row["name"], row["seconds"], row["figures"].items, row["choices"].items
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunFolderError(f"{file} is damaged; delete it. The runs next to it stay and are listed again") from error
    return found


def gather_rows(folder: Path) -> Json:
    """The file anew, from what each run says of itself: a cluster's runs write no table."""
    found = read(folder)
    if found is None:
        raise RunFolderError(f"{folder} holds no sweep: it has no {SWEEP}")
    from nemo_vfm.runtime.run_status import read_status

    for row in found["points"]:
        run = folder / row["name"]
        if (run / RECIPE).is_file():
            line = read_status(run)
            is_done = line.state == "done"
            row |= {
                "state": line.state, "exit_status": 0 if is_done else None,
                "seconds": None if line.seconds is None else round(line.seconds, 1),
                "figures": read_json_object(run / STATUS).get("figures", {}) if is_done else {},
            }  # fmt: skip
    write_json(folder / SWEEP, found)
    return found


def show(axes: Sequence[str], rows: Sequence[Json], folder: Path) -> None:
    """One row a run: its values, how it ended, its figures.

    The best one has a star: by the metric that the recipe names, else by the validation loss, else by the loss.
    """
    from rich.console import Console

    measure, mode = measure_of(rows, [folder / row["name"] for row in rows])
    # Up to five figures that any run has: that which is compared, losses, then the others as the runs name them.
    names = list(dict.fromkeys(name for row in rows for name in row["figures"]))
    first = [measure, validation_loss(names), *(name for name in names if name.split("/")[-1] in ("val_loss", "loss"))]
    figures = [name for name in dict.fromkeys([*first, *names]) if name in names][:5]
    best = best_of(rows, measure, mode)
    room, shown = Console(file=sys.stdout).width, list(figures)
    table, unlimited = _table(axes, rows, shown, best), Console(width=10_000)  # every cell on one line
    while len(shown) > 1 and unlimited.measure(table).maximum > room:
        shown.pop()
        table = _table(axes, rows, shown, best)
    # What is wider all the same is the terminal's to wrap: a value that is cut off says nothing.
    Console(file=sys.stdout, markup=False, highlight=False, width=max(room, unlimited.measure(table).maximum)).print(
        table
    )
    legend = f"* {'highest' if mode == 'max' else 'lowest'} {measure}. " if best is not None else ""
    left = f"Left out to fit the terminal: {', '.join(figures[len(shown) :])}. " if len(shown) < len(figures) else ""
    sys.stdout.write(f"{legend}{left}The runs are in {folder}, the table in {folder / SWEEP}\n")


def _table(axes: Sequence[str], rows: Sequence[Json], figures: Sequence[str], best: Json) -> "Table":
    """With these figures; no cell is wrapped."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for path in axes:
        table.add_column(path, no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in (*figures, "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        given = [row["figures"].get(name) for name in figures]
        numbers = ["" if value is None else f"{value:.5g}" for value in given]
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f}"
        star = " *" if best == row else ""
        values = [row["choices"].get(path, "") for path in axes]
        table.add_row(*values, f"{row['state']}{star}", *numbers, seconds)
    return table


def measure_of(rows: Sequence[Json], folders: Sequence[Path]) -> tuple[str, Mode]:
    """The figure that says which run is best, and whether a small value is; empty where none does."""
    names = list(dict.fromkeys(name for row in rows for name in row["figures"]))
    begun = (run for run in folders if run.is_dir())
    given = recipe_metric(next(begun, Path()))  # the recipe is one, but for what differs
    if given is not None and f"{given.step}{given.name}" in names:
        return f"{given.step}{given.name}", given.mode
    losses = (name for name in names if name.split("/")[-1] == "loss")
    return validation_loss(names) or next(losses, ""), "min"


def best_of(rows: Sequence[Json], measure: str, mode: Mode) -> Json:
    """The row with the best figure; None where fewer than two have one."""
    ranked = [row for row in rows if measure in row["figures"]]
    choose = max if mode == "max" else min
    return choose(ranked, key=lambda row: float(row["figures"][measure])) if len(ranked) > 1 else None
