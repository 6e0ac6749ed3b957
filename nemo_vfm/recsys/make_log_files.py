"""Writes small click logs of random rows in the formats that can be imported, to try an import without a log."""

import csv
from collections.abc import Iterable

import numpy as np

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.storage.files import atomic_path
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.recsys.sources.kuairand_csv import COLUMNS

_MAX_ROWS = 1_000_000
_NUM_INTEGERS, _NUM_IDS = 13, 26  # of Criteo
_MINUTE_MS = 60_000
_START_MS = 1_649_000_000_000  # in April 2022, as KuaiRand

Row = list[object]


@makes("clicks.csv", "criteo.tsv", "kuairand.csv")
class MakeLogFiles:
    """Writes `criteo.tsv`, `kuairand.csv` and `clicks.csv` (click, user, item, category and price) into the run folder.

    Nothing can be learnt from them: clicks do not depend on the rest of a row.

    Args:
        num_rows: of each file.
    """

    def __init__(self, *, num_rows: int = 500) -> None:
        require_between(1, _MAX_ROWS, num_rows=num_rows)
        self.num_rows = num_rows

    def run(self, run: Run) -> Outcome:
        """Write the three files."""
        for number, (name, rows) in enumerate(_FILES.items()):
            draw = np.random.default_rng([run.seed, number])
            delimiter = "\t" if name.endswith(".tsv") else ","
            with (
                atomic_path(run.folder / name) as unfinished,
                unfinished.open("w", encoding="utf-8", newline="") as file,
            ):
                csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows(draw, self.num_rows))
        text = f"{self.num_rows:,} rows each in {', '.join(_FILES)} in {run.folder}"
        return Outcome(text, {"rows": self.num_rows, "files": len(_FILES)})


def _criteo(draw: np.random.Generator, num_rows: int) -> Iterable[Row]:
    """A label, 13 integers and 26 ids of eight hexadecimal digits; an eighth of the cells is empty."""
    for _ in range(num_rows):
        integers = (draw.geometric(0.01, _NUM_INTEGERS) - 3).tolist()
        ids = [f"{feature:02x}{value:06x}" for feature, value in enumerate(draw.zipf(1.5, _NUM_IDS) % (1 << 24))]
        empty = draw.random(_NUM_INTEGERS + _NUM_IDS) < 1 / 8
        cells = ["" if is_empty else cell for cell, is_empty in zip([*integers, *ids], empty, strict=True)]
        yield [int(draw.random() < 1 / 4), *cells]


def _kuairand(draw: np.random.Generator, num_rows: int) -> Iterable[Row]:
    """Users are shown some videos at one time, and the next ones minutes or hours later."""
    yield list(COLUMNS)
    for _ in range(num_rows):
        row = dict.fromkeys(COLUMNS, 0) | {
            "user_id": int(draw.integers(30)),
            "video_id": int(draw.integers(500)),
            "time_ms": _START_MS + int(draw.integers(40)) ** 2 * 5 * _MINUTE_MS,
            "is_click": int(draw.random() < 0.4),
            "long_view": int(draw.random() < 0.3),
            "duration_ms": int(draw.integers(3_000, 300_000)),
            "tab": int(draw.integers(5)),
        }
        yield list(row.values())


def _clicks(draw: np.random.Generator, num_rows: int) -> Iterable[Row]:
    """Every id comes often enough to get a row of its own; some prices are missing."""
    yield ["click", "user", "item", "category", "price"]
    for _ in range(num_rows):
        price = "" if draw.random() < 1 / 8 else f"{draw.lognormal(2):.2f}"
        click = int(draw.random() < 1 / 4)
        yield [click, f"u{draw.integers(9)}", f"{draw.integers(40)}", f"c{draw.integers(3)}", price]


_FILES = {"criteo.tsv": _criteo, "kuairand.csv": _kuairand, "clicks.csv": _clicks}
