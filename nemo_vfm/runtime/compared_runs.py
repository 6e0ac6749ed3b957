"""Gathers what a page of several runs shows: how each ended, and the keys in which their recipes differ."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nemo_vfm.config import read_values
from nemo_vfm.config.tree import TARGET
from nemo_vfm.core.sanitize import printable
from nemo_vfm.core.secret import conceal_keys
from nemo_vfm.core.storage.files import read_json_object
from nemo_vfm.core.types.job import RECIPE, REPORT, STATUS
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.report import comparison
from nemo_vfm.report.comparison import ComparedRun
from nemo_vfm.runtime import sweep_table
from nemo_vfm.runtime.run_status import read_status

_IGNORED = ("run_dir", "seed")  # where a run lies; and a seed stands in no recipe


def show_sweep(axes: Sequence[str], rows: Sequence[Json], folder: Path) -> None:
    """Print a sweep's table, write its page and print where that is."""
    sweep_table.show(axes, rows, folder)
    begun = {row["name"]: run for row in rows if ((run := folder / row["name"]) / RECIPE).is_file()}
    if begun:
        page = write_comparison(folder / REPORT, printable(folder.name, 200), begun)
        sys.stdout.write(f"{printable(str(page), 4096)}\n")


def write_comparison(path: Path, title: str, folders: Mapping[str, Path]) -> Path:
    """Write the page of runs, each under its name."""
    files = {name: folder / RECIPE for name, folder in folders.items()}
    texts = {name: read_values(file.read_text(encoding="utf-8"), str(file)) for name, file in files.items()}
    recipes = {name: dict(_leaves(text)) for name, text in texts.items()}
    keys = [key for key in dict.fromkeys(key for one in recipes.values() for key in one) if key not in _IGNORED]
    differing = [key for key in keys if len({recipe.get(key) for recipe in recipes.values()}) > 1]
    settings: dict[str, dict[str, str]] = {name: {} for name in recipes}
    for key in differing:  # a class goes by its last name where no other class of the key has it
        values = [recipe.get(key, "") for recipe in recipes.values()]
        short = [value.rpartition(".")[2] if key.split(".")[-1] == TARGET else value for value in values]
        is_clear = len(set(short)) == len(set(values))
        for row, value in zip(settings.values(), short if is_clear else values, strict=True):
            row[key] = value
    runs = [
        ComparedRun(name, at, read_status(at).state, settings[name], read_json_object(at / STATUS).get("figures", {}))
        for name, at in folders.items()
    ]
    rows = [{"name": run.name, "figures": run.figures} for run in runs]
    measure, mode = sweep_table.measure_of(rows, list(folders.values()))
    best = sweep_table.best_of(rows, measure, mode)
    return comparison.write(
        path, title, runs, best["name"] if best else "", f"{'highest' if mode == 'max' else 'lowest'} {measure}"
    )


def _leaves(node: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """Every value by its dotted key, as text; a list is one value."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, conceal_keys(str(node))
