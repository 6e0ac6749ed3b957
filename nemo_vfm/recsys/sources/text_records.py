"""Cuts CSV and JSON Lines into records, block by block from any line on, with the line of every record that is bad."""

import csv
import gzip
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

import numpy as np

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import open_regular
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.sources import text_blocks
from nemo_vfm.recsys.sources.log_reading import BadRow, LogPosition, LogRows

_MAX_RECORD_LINES = 100  # of a quoted cell with line ends; beyond it a quote was not closed
_UNCLOSED = "a quote is not closed"
_ENOUGH = 100  # records in which a key has to come, but in the first file, which may be shorter
_JSON_LINES = (".jsonl", ".ndjson", ".json")

#: The values of a record in the order of the names that are asked for, or why it is none; None for an empty line.
_Record: TypeAlias = list[Json] | str | None


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Records of a file, one after another."""

    rows: LogRows  #: which they are
    #: of each name that was asked for its values: texts of CSV, values of JSON, None for a missing key
    columns: dict[str, list[Json]]
    end: LogPosition  #: where to go on
    share: float  #: of all files' bytes, as they are on disk, up to there


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """Files of records: those that end in .jsonl, .ndjson or .json have an object a line, all others cells."""

    paths: Sequence[Path]  #: in order; a further .gz is unpacked
    names: Sequence[str]  #: the columns or keys that are read
    header: Sequence[str] | None  #: the columns of CSV where files have no header; else None
    delimiter: str | None  #: of CSV; None is a tab in files that end in .tsv, and a comma in others

    def blocks(self, begin: LogPosition) -> Iterator[RecordBlock]:
        """All records from `begin` on."""
        sizes = text_blocks.sizes_of(self.paths)
        for number in range(begin.file, len(self.paths)):
            at = begin if number == begin.file else LogPosition(number, row=begin.row)
            with open_regular(self.paths[number]) as raw:
                for rows, columns, end in self._blocks(raw, at):
                    share = (sum(sizes[:number]) + min(raw.tell(), sizes[number])) / max(1, sum(sizes))
                    yield RecordBlock(rows, columns, end, share)
                    begin = end

    def _blocks(self, raw: BinaryIO, at: LogPosition) -> Iterator[tuple[LogRows, dict[str, list[Json]], LogPosition]]:
        path = self.paths[at.file]
        lines = _TextLines(cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw, path)
        is_json = _kind(path) in _JSON_LINES
        keys = dict[str, None]()
        with text_blocks.named_damage(path, at):
            record = self._json_records(lines, keys) if is_json else self._csv_records(lines, path)
            lines.seek(at)
        while True:
            before, row = lines.offset, at.row
            with text_blocks.named_damage(path, at):
                found, bad = _records(lines, record, path)
            if lines.offset == before:
                return
            at = LogPosition(at.file, lines.offset, lines.line, row + len(found) + len(bad))
            values = [values for _, _, values in found]
            if is_json and not before and (len(values) >= _ENOUGH or at.file == 0):
                # A key that no record has is misspelt: it would be a feature that all samples lack.
                for place, name in enumerate(self.names):
                    if values and all(one[place] is None for one in values):
                        raise UserError(
                            f"none of the first {len(values):,} records of {path} has a value of {name}; "
                            f"{_did_you_mean(name, [*keys])}the first one has {', '.join(keys)}. Leave out a key that "
                            "is rarely present"
                        )
            columns = {name: [one[place] for one in values] for place, name in enumerate(self.names)}
            starts = np.array([(line, row + number) for line, number, _ in found], np.int64).reshape(-1, 2)
            yield LogRows(str(path), starts[:, 0], starts[:, 1], bad), columns, at

    def _json_records(self, lines: "_TextLines", keys: dict[str, None]) -> Callable[[], _Record]:
        def record() -> _Record:
            line = next(lines).strip()
            if not line:
                return None
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                return "it is not JSON"
            if not isinstance(found, dict):
                return "it is not a JSON object"
            keys.update(found if not keys else ())
            return [found.get(name) for name in self.names]

        return record

    def _csv_records(self, lines: "_TextLines", path: Path) -> Callable[[], _Record]:
        delimiter = self.delimiter or ("\t" if _kind(path) == ".tsv" else ",")
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        header = list(self.header or ())
        if not header:
            with suppress(csv.Error, _UnclosedCell):
                header = [name.strip() for name in next(reader, [])]
            lines.take()
        for name in self.names:
            if name not in header:
                raise UserError(
                    f"{path} has no column {name}; {_did_you_mean(name, header)}its first line, split at "
                    f"{delimiter!r}, is {', '.join(header)[:500]!r}. Set delimiter if its cells are separated by "
                    "something else, and columns if it has no header"
                )
            if header.count(name) > 1:
                raise UserError(f"{path} has {header.count(name)} columns {name}; rename all but one")
        places = [header.index(name) for name in self.names]

        def record() -> _Record:
            try:
                cells = next(reader)
            except (csv.Error, _UnclosedCell) as error:
                return f"it is not CSV: {error}".replace("unexpected end of data", _UNCLOSED)
            if not cells:
                return None
            if len(cells) != len(header):
                return f"it does not have {len(header)} columns"
            return [cells[place] for place in places]

        return record


class _UnclosedCell(Exception):
    """A cell goes on for too many lines."""


@dataclass(slots=True)
class _TextLines:
    """Lines of a file as text; those that turn out to be no record can be given back, all but the first."""

    _file: BinaryIO
    _path: Path
    offset: int = 0  #: bytes of all records so far
    line: int = 0  #: their lines
    _taken: list[bytes] = field(default_factory=list)
    _waiting: deque[bytes] = field(default_factory=deque)

    def __iter__(self) -> "_TextLines":
        return self

    def __next__(self) -> str:
        if len(self._taken) == _MAX_RECORD_LINES:
            raise _UnclosedCell(_UNCLOSED)
        line = self._waiting.popleft() if self._waiting else self._file.readline(text_blocks.BLOCK_BYTES)
        if len(line) == text_blocks.BLOCK_BYTES:
            number = self.line + len(self._taken) + 1
            raise DataError(
                f"line {number} of {self._path} is longer than {text_blocks.BLOCK_BYTES:,} bytes; is it text?"
            )
        if not line:
            raise StopIteration
        self._taken.append(line)
        mark = "utf-8-sig" if not self.offset and len(self._taken) == 1 else "utf-8"
        return line.decode(mark, "surrogateescape")  # so that ids in another encoding stay apart

    def take(self, *, only_first: bool = False) -> None:
        """The lines since the last call were a record, or only the first of them was."""
        kept = self._taken[:1] if only_first else self._taken
        self._waiting.extendleft(reversed(self._taken[len(kept) :]))
        self.offset, self.line = self.offset + sum(map(len, kept)), self.line + len(kept)
        self._taken = []

    def seek(self, at: LogPosition) -> None:
        """Go on there, unless that is before here."""
        if at.offset > self.offset:
            self._file.seek(at.offset)
            self.offset, self.line = at.offset, at.line


def _records(
    lines: _TextLines, record: Callable[[], _Record], path: Path
) -> tuple[list[tuple[int, int, list[Json]]], list[BadRow]]:
    """A block: line, number in the block and values of each record, and the bad ones between them.

    A bad one ends with its first line, so that a quote that is not closed spoils one row.
    """
    found, bad, begin = list[tuple[int, int, list[Json]]](), list[BadRow](), lines.offset
    while lines.offset - begin < text_blocks.BLOCK_BYTES:
        line = lines.line + 1
        try:
            values = record()
        except StopIteration:
            break
        lines.take(only_first=isinstance(values, str))
        if isinstance(values, str):
            bad.append(BadRow(str(path), line, values))
        elif values is not None:
            found.append((line, len(found) + len(bad), values))
    return found, bad


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}? " if near else ""


def _kind(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
