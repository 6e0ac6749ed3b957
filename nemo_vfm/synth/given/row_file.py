"""Reads given rows from files: JSON lines, also packed, and Parquet."""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage import files
from nemo_vfm.core.storage.folder_walk import files_below, text_name
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.json_value import Json, finite_number, no_json_number
from nemo_vfm.data.sources.unpacked_file import decompress
from nemo_vfm.synth.given.row_source import GivenRow

_LINES = (".jsonl", ".ndjson")
_PACKED = (".gz", ".zst", ".bz2")
_ENDINGS = (*_LINES, *(f"{line}{packed}" for line in _LINES for packed in _PACKED), ".parquet")
_ROWS_AT_ONCE = 64


class RowFile:
    """Rows of a file, or of all files of a folder by name. Memory holds one line, or 64 rows of a Parquet file.

    Args:
        path: .jsonl with an object a line (also .jsonl.gz, .jsonl.zst, .jsonl.bz2), .parquet, or a folder of such
            files at any depth. The `rows.jsonl` of a run is one.
        max_row_mb: a longer line ends the run, in MB (10^6 bytes).
    """

    def __init__(self, *, path: Path, max_row_mb: float = 16.0) -> None:
        if max_row_mb <= 0:
            raise ValueError(f"max_row_mb must be above 0, got {max_row_mb:g}")
        self.path, self.max_row_mb = local(path, "the path of rows"), max_row_mb

    def given_rows(self) -> Iterator[GivenRow]:
        """See `RowSource`.

        Raises:
            UserError: there is no such file, or a row is no object.
            DataError: a file is damaged or cut off.
        """
        if self.path.is_file():
            if not _is_rows(self.path.name):
                raise UserError(f"{self.path} is not a file of rows; known endings are {', '.join(_ENDINGS)}")
            found, below = [self.path], self.path.parent
        else:
            found, below = [], self.path
            if self.path.is_dir():
                found = files_below(self.path, lambda name: _is_rows(name.name))
            if not found:
                raise UserError(f"there is no file of rows in {self.path}; expected a name ending in "
                                f"{', '.join(_ENDINGS)}")  # fmt: skip
        for path in found:
            name = text_name(path, below)
            rows = _parquet(path, name) if name.lower().endswith(".parquet") else self._lines(path, name)
            for where, values in rows:
                yield GivenRow(where, values)

    def _lines(self, path: Path, name: str) -> Iterator[tuple[str, dict[str, Json]]]:
        most, number = int(self.max_row_mb * 1e6), 0
        try:
            with files.open_regular(path) as packed, decompress(path.name, packed) as file:
                while True:
                    try:
                        line = file.readline(most + 1)
                    except (OSError, EOFError, ValueError, zlib.error) as error:  # it breaks off, or lost a bit
                        raise DataError(
                            f"{name} is damaged or truncated after line {number} ({error}); copy it again"
                        ) from error
                    if not line:
                        return
                    number += 1
                    if len(line) > most:
                        raise UserError(f"line {number} of {name} is longer than {most:,} bytes; raise max_row_mb")
                    if line.strip():
                        yield f"{name} line {number}", _object(line, f"line {number} of {name}")
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


def _is_rows(name: str) -> bool:
    return name.lower().endswith(_ENDINGS) and not name.startswith(".")


def _object(line: bytes, where: str) -> dict[str, Json]:
    try:
        row = json.loads(line.decode("utf-8-sig"), parse_constant=no_json_number, parse_float=finite_number)
        if b"\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half of a pair, such as "\\ud800", which JSON can spell
    except (ValueError, RecursionError) as error:
        cut = "" if line.endswith(b"\n") else "; it is the last line and has no line end, so the file may be truncated"
        raise DataError(f"{where} cannot be read as JSON ({error}){cut}") from error
    if not isinstance(row, dict):
        raise UserError(f"{where} holds no JSON object, but each row must be one")
    return row


def _parquet(path: Path, name: str) -> Iterator[tuple[str, dict[str, Json]]]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.OSFile(os.fsencode(path)) as file, pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{name} row {number}", _as_json(row, f"row {number} of {name}")
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        if isinstance(error, UserError):
            raise
        raise DataError(f"{name} is damaged or truncated after row {number} ({error}); copy it again") from error


def _as_json(row: dict[str, Any], where: str) -> dict[str, Json]:
    for column, value in row.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"column {column} of {where} holds values that JSON cannot represent ({error}); leave the column out"
            ) from error
    return {column: _without_empty(value) for column, value in row.items()}


def _without_empty(value: Json) -> Json:
    """Objects without the fields that Parquet gives all objects of a column because one of them has it."""
    if isinstance(value, list):
        return [_without_empty(one) for one in value]
    if isinstance(value, dict):
        return {key: _without_empty(one) for key, one in value.items() if one is not None}
    return value
