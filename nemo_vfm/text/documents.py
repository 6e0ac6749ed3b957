# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Files of documents in (JSONL, Parquet, plain text), their texts out; those that cannot be read are counted.

A file's documents come in its own order and files in the order of their names, so the same files give the same texts.
"""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.place import local
from nemo_vfm.core.types import Json

SUFFIXES = (".jsonl", ".jsonl.gz", ".json.gz", ".parquet", ".txt")
_MAX_BAD_IN_A_ROW = 16
_MAX_BYTES = 256 << 20  # of one document
_ROWS_AT_ONCE = 256


class Documents:
    """A file, or all files below a folder, read anew each time.

    Args:
        path: .jsonl (also .gz) with an object a line, .parquet, or .txt, each file of which is one document; or a
            folder of such files, at any depth.
        column: where the text is, in JSONL and Parquet.
    """

    def __init__(self, *, path: Path, column: str = "text") -> None:
        if not column:
            raise ValueError("column is empty; name the one that holds the texts")
        self.path, self.column = local(path, "the path of documents"), column

    def files(self) -> list[Path]:
        """All of them, by name.

        Raises:
            UserError: there are none.
        """
        if self.path.is_file():
            return [self.path]
        found = sorted(path for path in self.path.rglob("*") if path.name.lower().endswith(SUFFIXES) and path.is_file())
        if not found:
            raise UserError(f"there is no file of documents in {self.path}; looked for {', '.join(SUFFIXES)}")
        return found

    def read(self, file: Path, skipped: Counter[str]) -> Iterator[str]:
        """The texts of one file that have a letter at all.

        Args:
            skipped: how many had none, or could not be read, is added here, by reason.

        Raises:
            UserError: the file has no such column, or is of another kind.
            DataError: it is damaged, or many documents in a row are.
        """
        bad = 0
        for number, found in enumerate(self._found(file), 1):
            if isinstance(found, str) and found.strip():
                bad = 0
                yield found
                continue
            if found is None or isinstance(found, str):
                skipped["empty"] += 1
                continue
            bad += 1
            skipped[found.reason] += 1
            if bad == _MAX_BAD_IN_A_ROW:
                raise DataError(f"{bad} documents in a row up to number {number} of {file} are bad: {found.reason}")

    def texts(self, skipped: Counter[str]) -> Iterator[str]:
        """Those of all files; see `read`."""
        for file in self.files():
            yield from self.read(file, skipped)

    def state(self) -> list[list[Json]]:
        """Name and size of each file: changes when files come, go or grow."""
        folder = self.path if self.path.is_dir() else self.path.parent
        return [[file.relative_to(folder).as_posix(), file.stat().st_size] for file in self.files()]

    def _found(self, file: Path) -> "Iterator[str | _Bad | None]":
        name = file.name.lower()
        try:
            if name.endswith(".parquet"):
                yield from _parquet(file, self.column)
            elif name.endswith(".txt"):
                yield _plain(file)
            elif name.endswith((".jsonl", ".jsonl.gz", ".json.gz")):
                yield from _jsonl(file, self.column)
            else:
                raise UserError(f"{file} is no file of documents; known are {', '.join(SUFFIXES)}")
        except (OSError, EOFError, ValueError, zlib.error) as error:  # a gzip that breaks off, a Parquet that is none
            if isinstance(error, UserError):
                raise
            raise DataError(f"{file} cannot be read: {error}") from error


class _Bad:
    """A document that cannot be read."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _plain(file: Path) -> "str | _Bad":
    if file.stat().st_size > _MAX_BYTES:
        return _Bad(f"longer than {_MAX_BYTES >> 20} MiB")
    return _decoded(file.read_bytes())


def _decoded(data: bytes) -> "str | _Bad":
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return _Bad("not UTF-8")


def _jsonl(file: Path, column: str) -> "Iterator[str | _Bad | None]":
    with _opened(file) as lines:
        while line := lines.readline(_MAX_BYTES + 1):
            if len(line) > _MAX_BYTES:
                while line and not line.endswith(b"\n"):
                    line = lines.readline(_MAX_BYTES + 1)
                yield _Bad(f"longer than {_MAX_BYTES >> 20} MiB")
            elif line.strip():
                yield _of_line(line, column)


def _opened(file: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb")


def _of_line(line: bytes, column: str) -> "str | _Bad | None":
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return _Bad("not JSON")
    if not isinstance(row, dict) or column not in row:
        return _Bad(f"without {column!r}")
    return _checked(row[column], column)


def _checked(text: Json, column: str) -> "str | _Bad | None":
    return text if text is None or isinstance(text, str) else _Bad(f"{column!r} is no text")


def _parquet(file: Path, column: str) -> "Iterator[str | _Bad | None]":
    import pyarrow
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file) as table:
        names = table.schema_arrow.names
        if column not in names:
            raise UserError(f"{file} has no column {column!r}; it has {', '.join(names)}")
        try:
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column]):
                yield from (_checked(text, column) for text in batch.column(0).to_pylist())
        except pyarrow.ArrowException as error:
            raise DataError(f"{file} cannot be read: {error}") from error
