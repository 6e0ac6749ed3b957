"""Reads logs from CSV and JSON Lines with any names of columns or keys.

Shape letters: L rows of the block.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.sources.arrow_values import text_hash
from nemo_vfm.recsys.sources.log_reading import LogPosition, LogRows, ReadChunk
from nemo_vfm.recsys.sources.named_columns import ColumnLog
from nemo_vfm.recsys.sources.text_records import RecordFiles
from nemo_vfm.sparse.jagged import Jagged

_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]{0,18}|1[0-9]{19}))(?:\.0+)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
T = TypeVar("T")


class TextLog(ColumnLog):
    """Anybody's log in CSV or JSON Lines, a record a sample.

    Files that end in .jsonl, .ndjson or .json have a JSON object a line; all others have cells, which may stand in
    double quotes. An id is a whole number (123, also as text or 123.0), or 64 bits of a text's hash, alone or in a
    list. An empty cell, null and a missing key are an empty row of a feature and NaN of a dense number; a record
    without session, time, label or weight is no sample. Spaces around a cell do not count; empty lines are no records.

    Args:
        paths: the files, in order; those with a further .gz are unpacked.
        session: column of whole numbers or texts; None if the log has no sessions, each sample is then its own.
        time: column of whole numbers, in whose unit they stay, or of texts such as 2026-11-27T12:00:00Z, which are
            counted in microseconds; None where records stand in order of time.
        labels: columns of numbers, or of true and false.
        features: columns of ids.
        dense: columns of numbers.
        weight: column of numbers above 0, what each sample counts; None if all count alike.
        log1p: dense numbers x become ln(1 + max(x, 0)).
        lists: features whose texts hold several ids, and what stands between these, such as `"|"`. Lists of JSON need
            none.
        columns: names of the columns of CSV files without a header; None reads the first line of each file.
        delimiter: between cells; None is a tab in files that end in .tsv, and a comma in others.
        missing: texts that say that there is no value, such as NULL.
    """

    def __init__(
        self, *, paths: Sequence[Path], session: str | None, time: str | None, labels: Sequence[str],
        features: Sequence[str], dense: Sequence[str] = (), weight: str | None = None, log1p: bool = False,
        lists: Mapping[str, str] | None = None, columns: Sequence[str] | None = None, delimiter: str | None = None,
        missing: Sequence[str] = ("",),
    ) -> None:  # fmt: skip
        super().__init__(paths, session, time, labels, features, dense, weight, log1p)
        self.lists, self.missing = dict(lists or {}), ("", *missing)
        if unknown := [name for name in self.lists if name not in features]:
            raise ValueError(f"lists names {unknown[0]}, which is not among the features {', '.join(features)}")
        if wrong := [name for name, separator in self.lists.items() if not separator]:
            raise ValueError(f"lists.{wrong[0]} is empty; give the separator between ids, such as '|'")
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise ValueError(f"delimiter must be one character, not a quote or line end, got {delimiter!r}")
        self._files = RecordFiles(self.paths, self.names, columns, delimiter)

    def read(self, begin: LogPosition) -> Iterator[ReadChunk]:
        for block in self._files.blocks(begin):
            rows = TextRows(block.rows, block.columns, self.lists, self.missing)
            yield rows.rows.read_chunk(self.chunk(rows), block.end, block.share)


@dataclass(frozen=True, slots=True, eq=False)
class TextRows:
    """Rows of a text file. Columns are converted when asked for; rows that do not convert are refused."""

    rows: LogRows  #: all of the block
    columns: Mapping[str, Sequence[Json]]  #: of each name texts of cells or values of JSON, None where there is none
    lists: Mapping[str, str]  #: features whose texts hold several ids, and what stands between these
    missing: Sequence[str]  #: texts that say that there is none

    def keys(self, name: str) -> Tensor:
        """Whole numbers, or hashes of texts: int64, (L,). A row without one is refused."""
        return torch.tensor(
            self._converted(name, _id, "is neither a whole number nor text", 0, required=True), dtype=torch.int64
        )

    def times(self, name: str) -> Tensor:
        """Whole numbers, or texts such as 2026-11-27T12:00:00Z as microseconds since 1970: int64, (L,)."""
        found = self._converted(name, _time, "is neither a whole number nor a date or time", 0, required=True)
        return torch.tensor(found, dtype=torch.int64)

    def numbers(self, name: str, *, required: bool) -> Tensor:
        """Numbers, or true and false: float32, (L,). NaN where there is none, which is refused where it is required."""
        found = np.array(self._converted(name, _number, "is not a number", math.nan, required=required))
        if required:
            self.rows.refuse(np.isnan(found), f"{name} is missing")
        with np.errstate(over="ignore"):  # what is beyond float32 is refused later, whatever the source
            return torch.from_numpy(found.astype(np.float32))

    def ids(self, name: str) -> Jagged:
        """Whole numbers or hashes of texts, alone or in lists; an empty row where there is none."""

        def convert(value: Json) -> tuple[int, ...] | None:
            # Of a list, also one that is written as a text, in which brackets and quotes are no part of ids.
            separator = self.lists.get(name)
            if isinstance(value, str) and separator is not None:
                inside = value.removeprefix("[").removesuffix("]").strip(" \t")
                value = [part.strip(" \t'\"") for part in inside.split(separator)] if inside else []
            elif isinstance(value, str) and value.startswith("[") and value.endswith("]"):
                return None
            found = [_id(one) if one != "" else None for one in (value if isinstance(value, list) else [value])]
            return None if None in found else tuple(one for one in found if one is not None)

        wrong = "has an id that is neither a whole number nor text"
        found = self._converted(name, convert, wrong, tuple[int, ...](), required=False)
        lengths = torch.tensor([*map(len, found)], dtype=torch.int64)
        return Jagged(torch.tensor([*itertools.chain.from_iterable(found)], dtype=torch.int64), lengths)

    def _converted(
        self, name: str, convert: Callable[[Json], T | None], wrong: str, default: T, *, required: bool
    ) -> list[T]:
        """Of each row its value, and the default of rows that have none or are refused."""
        cells = self.columns[name]
        texts = {one: one.strip(" \t") for one in cells if isinstance(one, str)}
        known = {one: _MISSING if text in self.missing else convert(text) for one, text in texts.items()}
        found = [
            known[cell] if isinstance(cell, str) else _MISSING if cell is None else convert(cell) for cell in cells
        ]
        for value, reason in ((_MISSING, "is missing"), (None, wrong)):
            rows = [row for row, one in enumerate(found) if one is value]
            if rows and (required or value is None):
                self.rows.refuse(np.array(rows), f"{name} {reason}")
        return [default if one is None or isinstance(one, _Missing) else one for one in found]


class _Missing:
    """There is no value, which is no mistake."""


_MISSING = _Missing()


def _id(value: Json) -> int | None:
    """A whole number as int64, or 64 bits of a text; a number beyond int64 is the one with the same bits."""
    if isinstance(value, str):
        whole = _WHOLE.fullmatch(value)
        value = int(whole[1]) if whole else text_hash(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # as is written where a column has gaps: 5.0
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 64:
        return None
    return value - (1 << 64) if value >= 1 << 63 else value


def _number(value: Json) -> float | None:
    if isinstance(value, str):  # float takes 1_000 for a number
        value = {"true": True, "false": False}.get(value.lower(), value.replace("_", "?"))
    try:
        return float(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        return None


def _time(value: Json) -> int | None:
    found = _id(value) if not isinstance(value, str) or _WHOLE.fullmatch(value) else None
    if found is not None or not isinstance(value, str):
        return found
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
