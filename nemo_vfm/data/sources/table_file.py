"""Reads the rows of a CSV, JSON Lines or Parquet file, and refuses a row that does not say what its columns promise."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.json_value import Json

MAX_TEXT_BYTES = 1 << 20
_SEPARATORS = ",;\t"


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table."""

    place: str  #: which one, as in "row 3 (line 4) of captions.csv"
    values: Mapping[str, Json]  #: by column

    def text(self, column: str) -> str:
        """A text, empty where there is none. DataError if it is a number, a list or an object, or too long."""
        value = self.values[column]
        if value is not None and not isinstance(value, str):
            raise DataError(f"{self.place} has {_in_words(value)} under {column!r} where text is expected: "
                            f"{str(value)[:80]!r}; write text, or null for none")  # fmt: skip
        # Half a character, which JSON can hold, would break whoever writes or hashes it.
        encoded = (value or "").strip().encode(errors="replace")
        if len(encoded) > MAX_TEXT_BYTES:
            raise DataError(f"{self.place} has more than {MAX_TEXT_BYTES:,} bytes under {column!r}")
        return encoded.decode()

    def path(self, column: str, root: Path) -> Path:
        """The file it names, links followed; relative ones begin at `root`, itself resolved. DataError if none."""
        text = self.values[column]
        if not isinstance(text, str) or not text or "\x00" in text:
            raise DataError(f"{self.place} has no file under {column!r}, but {text!r}")
        try:
            path = (root / text).resolve()
            path.as_posix().encode()
        except (OSError, ValueError, RuntimeError) as error:  # half a character of JSON, links in a circle
            raise DataError(f"{self.place} names {text[:200]!a}, not a path: {error}") from error
        return path


def check_suffix(path: Path) -> None:
    """Refuse a file whose name does not say that it is a table that we read, by a ValueError."""
    if path.suffix.lower() not in _READERS:
        raise ValueError(f"{path.name} is not a supported table: use one of {', '.join(_READERS)}")


def rows_of(path: Path, columns: Sequence[str], more: Sequence[str] | None = ()) -> Iterator[TableRow]:
    """The rows of a table, one by one; of `more`, columns that are there are read, and all where it is None.

    Raises:
        UserError: there is no such file or column.
        DataError: it is damaged, or a row is not what the columns promise.
    """
    if not path.is_file():
        raise UserError(f"there is no table {path}")
    number = 0
    try:
        for number, (line, values) in enumerate(_READERS[path.suffix.lower()](path, columns, more), 1):
            yield TableRow(f"row {number}{line} of {path}", values)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        if isinstance(error, UserError):
            raise
        raise DataError(f"row {number + 1} of {path} cannot be read: {error}") from error


def _csv(path: Path, columns: Sequence[str], more: Sequence[str] | None) -> Iterator[tuple[str, Mapping[str, Json]]]:
    with path.open("rb") as file:
        lines = _lines(file)
        head = next(lines, "")
        found = (one for one in _SEPARATORS if set(columns) <= set(next(csv.reader([head], delimiter=one), [])))
        separator = next(found, ",")
        reader = csv.reader(chain([head], lines), delimiter=separator, strict=True)
        names = next(reader, [])
        _require(path, columns, names)
        for fields in filter(None, reader):
            if len(fields) != len(names):
                raise ValueError(
                    f"line {reader.line_num} has {len(fields)} fields, but the first line has {len(names)} columns. "
                    f"Put a text that contains {separator!r} in double quotes"
                )
            yield f" (line {reader.line_num})", dict(zip(names, fields, strict=True))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Decoded one by one, so that the row at fault is known."""
    for number, line in enumerate(file):
        try:
            yield line.decode("utf-8" if number else "utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number + 1} is not UTF-8 ({error}); save the table as UTF-8") from error


def _require(path: Path, columns: Sequence[str], names: Sequence[str]) -> None:
    if missing := [name for name in columns if name not in names]:
        raise UserError(f"{path} has no column {missing[0]}; it has {', '.join(names)[:500]}. "
                        "Give its column names in the recipe")  # fmt: skip
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path} has two columns {twice!r}; rename one of them")


def _jsonl(path: Path, columns: Sequence[str], more: Sequence[str] | None) -> Iterator[tuple[str, Mapping[str, Json]]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_TEXT_BYTES + 1):
            number += 1
            if len(line) > MAX_TEXT_BYTES:
                raise ValueError(f"line {number} has more than {MAX_TEXT_BYTES:,} bytes")
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"line {number} must be an object, got {_in_words(row)}")
                if missing := [name for name in columns if name not in row]:
                    raise ValueError(f"line {number} has no column {missing[0]}; it has {', '.join(row)[:500]}. "
                                     "Every line needs the same keys; write null for no value")  # fmt: skip
                yield f" (line {number})", row


def _parquet(
    path: Path, columns: Sequence[str], more: Sequence[str] | None
) -> Iterator[tuple[str, Mapping[str, Json]]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        _require(path, columns, names)
        wanted = None if more is None else [*columns, *(name for name in more if name in names)]
        for batch in file.iter_batches(columns=wanted):
            for values in batch.to_pylist():
                yield "", values


def _in_words(value: Json) -> str:
    words = {list: "a list", dict: "an object", bool: "true or false", int: "a number", float: "a number"}
    return words.get(type(value), type(value).__name__)


_Reader = Callable[[Path, Sequence[str], Sequence[str] | None], Iterator[tuple[str, Mapping[str, Json]]]]
_READERS: Mapping[str, _Reader] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
