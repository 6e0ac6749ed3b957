"""Splits files of documents into portions of about equal size, and reads the documents of a portion.

One process tokenizes a portion into one shard. Portions are a function of the files' names and sizes, so a resumed run
cuts them as before. A JSONL file is split at bytes (a line belongs to the part in which it begins), Parquet at row
groups. Other files are not split. Documents come with their positions; an unreadable one comes with the reason.
"""

import itertools
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import open_regular
from nemo_vfm.core.storage.folder_walk import files_below
from nemo_vfm.data.shards.tar_members import A_FOLDER, CAN_HOLD_CODE, NO_NAME, NOT_A_FILE, index_tar
from nemo_vfm.data.sources.unpacked_file import decompress

#: Ending -> how a file is read
KINDS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".jsonl.gz": "packed jsonl", ".json.gz": "packed jsonl", ".jsonl.zst": "packed jsonl", ".jsonl.bz2": "packed jsonl",
    ".parquet": "parquet", ".tar": "tar", ".txt": "text",
}  # fmt: skip
_ROWS_AT_ONCE = 64
_BROKEN = "damaged from here on: {}"
#: Why members of a tar are left out that would be no documents anyway
_NO_DOCUMENTS = {A_FOLDER, NOT_A_FILE, NO_NAME, CAN_HOLD_CODE}


@dataclass(frozen=True, slots=True)
class FileSpan:
    """A part of a file.
    begin, end: bytes of a JSONL file, row groups of a Parquet file; elsewhere 0 and 1.
    """

    file: str  #: below the folder
    kind: str  #: how it is read
    size: int  #: of the whole file, in bytes
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Portion:
    """Spans that are tokenised one after another."""

    number: int  #: among all, from 0
    spans: tuple[FileSpan, ...]  #: in the files' order

    @property
    def name(self) -> str:
        """Of its shard, and of the record of what became of it."""
        return f"shard-{self.number:06d}"


def files_of(path: Path) -> tuple[Path, list[tuple[str, str]]]:
    """The folder that names are below, and (name, kind) of each file, by name."""
    if path.is_file():
        if kind_of(path.name) is None:
            raise UserError(f"{path} is not a file of documents; known endings are {', '.join(KINDS)}")
        return path.parent, [(path.name, str(kind_of(path.name)))]
    wanted = files_below(path, lambda name: kind_of(name.as_posix()) is not None)
    names = [found.relative_to(path).as_posix() for found in wanted]
    if not names:
        raise UserError(f"there is no file of documents in {path}; expected a name ending in {', '.join(KINDS)}")
    return path, [(name, str(kind_of(name))) for name in names]


def kind_of(name: str) -> str | None:
    """How a file of this name is read; None where it is not, as what is hidden."""
    last = name.rpartition("/")[2].lower()
    return next((kind for ending, kind in KINDS.items() if last.endswith(ending) and not last.startswith(".")), None)


def portions(folder: Path, files: list[tuple[str, str]], portion_bytes: int) -> list[Portion]:
    """All files, cut or put together to portions of about so many bytes."""
    found: list[Portion] = []
    spans: list[FileSpan] = []
    weight = 0
    for name, kind in files:
        for span, size in _spans(folder, name, kind, portion_bytes):
            if spans and weight + size > portion_bytes:
                found.append(Portion(len(found), tuple(spans)))
                spans, weight = [], 0
            spans.append(span)
            weight += size
    return [*found, Portion(len(found), tuple(spans))]


def _spans(folder: Path, name: str, kind: str, most: int) -> Iterator[tuple[FileSpan, int]]:
    """The parts of a file, with the bytes of each."""
    size = (folder / name).stat().st_size
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        path = folder / name
        try:
            facts = pyarrow.parquet.read_metadata(pyarrow.OSFile(os.fsencode(path)))
            weights = [facts.row_group(number).total_byte_size for number in range(facts.num_row_groups)]
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise DataError(
                f"{path} cannot be read as a Parquet file ({error}); copy it again, or leave it out"
            ) from error
        begin = weight = 0  # neighbouring groups together, as long as they are small
        for number, one in enumerate(weights):
            if number > begin and weight + one > most:
                yield FileSpan(name, kind, size, begin, number), weight
                begin, weight = number, 0
            weight += one
        yield FileSpan(name, kind, size, begin, len(weights)), weight
    elif kind == "jsonl":
        count = max(1, -(-size // most))
        borders = [size * number // count for number in range(count + 1)]
        for begin, end in itertools.pairwise(borders):
            yield FileSpan(name, kind, size, begin, end), end - begin
    else:
        yield FileSpan(name, kind, size, 0, 1), size


@dataclass(frozen=True, slots=True)
class DocumentLine:
    """One document."""

    where: int | str  #: how many lines or rows of the span there were up to it, or its key in a tar
    text: str | None = None  #: of the document; None where it has none
    fault: str | None = None  #: why it could not be read; None where it could
    columns: tuple[str, ...] = ()  #: of an object that lacks the column of the text, those that it has

    def error(self) -> str:
        """The fault, and the columns that there are instead."""
        return f"{self.fault}" + (f"; it has {', '.join(self.columns[:20])}" if self.columns else "")


def lines(folder: Path, span: FileSpan, *, column: str, max_bytes: int) -> Iterator[DocumentLine]:
    """The documents of a span of a file below the folder, in its order; a longer one than `max_bytes` is not read.

    Their texts are in `column` of JSON and Parquet.
    """
    path = folder / span.file
    size = path.stat().st_size if path.is_file() else -1
    if size != span.size:
        raise UserError(
            f"{path} had {span.size:,} bytes when this run listed it, and has {size:,} now; start a new run"
        )
    if span.kind == "parquet":
        return _parquet(path, span, column, max_bytes)
    if span.kind == "tar":
        return _tar(path, column, max_bytes)
    if span.kind == "text":
        too_long = path.stat().st_size > max_bytes
        return iter([DocumentLine(1, fault=_too_long(max_bytes)) if too_long else _decode_line(1, path.read_bytes())])
    return _jsonl(path, span, column, max_bytes)


def _jsonl(path: Path, span: FileSpan, column: str, max_bytes: int) -> Iterator[DocumentLine]:
    number = 0
    try:
        with open_regular(path) as packed, decompress(path.name, packed) as file:
            for number, line in enumerate(_split(file, span, max_bytes), 1):
                if line is None:
                    yield DocumentLine(number, fault=_too_long(max_bytes))
                else:
                    yield _of_json(number, line, column) if line.strip() else DocumentLine(number)
    except (OSError, EOFError, ValueError, zlib.error) as error:  # a gzip that breaks off, or lost a bit
        yield DocumentLine(number + 1, fault=_BROKEN.format(type(error).__name__))


def _split(file: IO[bytes], span: FileSpan, max_bytes: int) -> Iterator[bytes | None]:
    """The lines that begin within the span; None for one that is too long."""
    at = 0
    if span.begin:
        file.seek(span.begin - 1)  # where that byte ends a line, nothing of ours is passed over
        at = span.begin - 1 + _skip_line(file, max_bytes)
    while (span.kind != "jsonl" or at < span.end) and (line := file.readline(max_bytes + 1)):
        at += len(line)
        whole = len(line) <= max_bytes or line.endswith(b"\n")
        if not whole:
            at += _skip_line(file, max_bytes)
        yield line if whole else None


def _skip_line(file: IO[bytes], piece: int) -> int:
    """Read to the end of the line; how many bytes that were."""
    count = 0
    while part := file.readline(piece + 1):
        count += len(part)
        if part.endswith(b"\n"):
            break
    return count


def _of_json(where: int | str, data: bytes, column: str) -> DocumentLine:
    try:
        row = json.loads(data)
    except (ValueError, RecursionError) as error:
        return DocumentLine(where, fault="not UTF-8" if isinstance(error, UnicodeDecodeError) else "not JSON")
    if not isinstance(row, dict):
        return DocumentLine(where, fault="not a JSON object")
    if column not in row:
        return DocumentLine(where, fault=f"without {column!r}", columns=tuple(row))
    text = row[column]
    if text is not None and not isinstance(text, str):
        return DocumentLine(where, fault=f"{column!r} is not text")
    try:
        (text or "").encode()
    except UnicodeEncodeError:  # half of a pair, such as "\ud800", which JSON can spell
        return DocumentLine(where, fault="no Unicode")
    return DocumentLine(where, text)


def _parquet(path: Path, span: FileSpan, column: str, max_bytes: int) -> Iterator[DocumentLine]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    # pyarrow encodes a path as UTF-8, which not every name is; bytes it takes as they are.
    with pyarrow.OSFile(os.fsencode(path)) as file, pyarrow.parquet.ParquetFile(file) as table:
        schema, kinds = table.schema_arrow, pyarrow.types
        if column not in schema.names:
            raise UserError(f"{path} has no column {column!r}; it has {', '.join(schema.names)}")
        kind = schema.field(column).type
        kind = kind.value_type if kinds.is_dictionary(kind) else kind
        if not (kinds.is_string(kind) or kinds.is_large_string(kind)):
            raise UserError(f"column {column!r} of {path} is {kind}, expected text")
        # As bytes: whoever wrote them may not have looked whether they are UTF-8, and one that is not fails them all.
        binary = pyarrow.large_binary() if kinds.is_large_string(kind) else pyarrow.binary()
        groups = list(range(span.begin, span.end))
        try:
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column], row_groups=groups):
                texts = batch.column(0)
                texts = texts.dictionary_decode() if kinds.is_dictionary(texts.type) else texts
                for text in texts.cast(binary).to_pylist():
                    number += 1
                    long = text is not None and len(text) > max_bytes
                    yield DocumentLine(number, fault=_too_long(max_bytes)) if long else _decode_line(number, text)
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            yield DocumentLine(number + 1, fault=_BROKEN.format(type(error).__name__))


def _decode_line(where: int | str, data: bytes | None) -> DocumentLine:
    try:
        return DocumentLine(where, None if data is None else data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return DocumentLine(where, fault="not UTF-8")


def _tar(path: Path, column: str, max_bytes: int) -> Iterator[DocumentLine]:
    """Samples of a WebDataset: the `.txt`, or `column` of the `.json` where there is no `.txt`."""
    try:
        index = index_tar(path)
    except DataError:
        yield DocumentLine("", fault="not a readable tar")
        return
    with path.open("rb") as file:
        for key, members in index.samples.items():
            extension = "txt" if "txt" in members else "json"
            if extension not in members:
                yield DocumentLine(key, fault="neither .txt nor .json")
                continue
            offset, size = members[extension]
            if size > max_bytes:
                yield DocumentLine(key, fault=_too_long(max_bytes))
                continue
            file.seek(offset)
            data = file.read(size)
            yield _decode_line(key, data) if extension == "txt" else _of_json(key, data, column)
    for reason, count in sorted(index.skipped.items()):
        if reason not in _NO_DOCUMENTS:
            yield from [DocumentLine("", fault=reason)] * count


def _too_long(max_bytes: int) -> str:
    return f"longer than {max_bytes:,} bytes"
