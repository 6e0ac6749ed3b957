"""Converts cells of CSV and values of JSON to sessions, times, numbers and ids.

Shape letters: L rows of the block.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.sources.arrow_values import text_hash
from nemo_vfm.recsys.sources.log_reading import LogRows
from nemo_vfm.sparse.jagged import Jagged

_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]{0,18}|1[0-9]{19}))(?:\.0+)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
T = TypeVar("T")


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
            self._convert(name, _id, "is neither a whole number nor text", 0, required=True), dtype=torch.int64
        )

    def times(self, name: str) -> Tensor:
        """Whole numbers, or texts such as 2026-11-27T12:00:00Z as microseconds since 1970: int64, (L,)."""
        found = self._convert(name, _time, "is neither a whole number nor a date or time", 0, required=True)
        return torch.tensor(found, dtype=torch.int64)

    def numbers(self, name: str, *, required: bool) -> Tensor:
        """Numbers, or true and false: float32, (L,). NaN where there is none, which is refused where it is required."""
        found = np.array(self._convert(name, _number, "is not a number", math.nan, required=required))
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
        found = self._convert(name, convert, wrong, tuple[int, ...](), required=False)
        lengths = torch.tensor([*map(len, found)], dtype=torch.int64)
        return Jagged(torch.tensor([*itertools.chain.from_iterable(found)], dtype=torch.int64), lengths)

    def _convert(
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
