"""Splits files of documents into portions of about equal size: one process tokenizes a portion into one shard.

Portions are a function of the files' names and sizes, so a resumed run cuts them as before. A JSONL file is split at
bytes (a line belongs to the part in which it begins), Parquet at row groups. Other files are not split.
"""

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.storage.folder_walk import files_below

#: Ending -> how a file is read.
KINDS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".jsonl.gz": "packed jsonl", ".json.gz": "packed jsonl", ".jsonl.zst": "packed jsonl", ".jsonl.bz2": "packed jsonl",
    ".parquet": "parquet", ".tar": "tar", ".txt": "text",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a file.

    Args:
        file: below the folder.
        kind: how it is read.
        size: of the whole file, in bytes.
        begin, end: bytes of a JSONL file, row groups of a Parquet file; elsewhere 0 and 1.
    """

    file: str
    kind: str
    size: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Portion:
    """Spans that are tokenised one after another.

    Args:
        number: among all, from 0.
        spans: in the files' order.
    """

    number: int
    spans: tuple[Span, ...]

    @property
    def name(self) -> str:
        """Of its shard, and of the record of what became of it."""
        return f"shard-{self.number:06d}"


def files_of(path: Path) -> tuple[Path, list[tuple[str, str]]]:
    """The folder that names are below, and (name, kind) of each file, by name.

    Raises:
        UserError: there are none.
    """
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
    """All files, cut or put together to portions of about so many bytes.

    Raises:
        DataError: a Parquet file has no footer that can be read.
    """
    found: list[Portion] = []
    spans: list[Span] = []
    weight = 0
    for name, kind in files:
        for span, size in _spans(folder, name, kind, portion_bytes):
            if spans and weight + size > portion_bytes:
                found.append(Portion(len(found), tuple(spans)))
                spans, weight = [], 0
            spans.append(span)
            weight += size
    return [*found, Portion(len(found), tuple(spans))]


def identity(found: list[Portion]) -> str:
    """Changes with any file's name or size, and with how they are cut."""
    return sha256_text(json.dumps([asdict(portion) for portion in found]))


def _spans(folder: Path, name: str, kind: str, most: int) -> Iterator[tuple[Span, int]]:
    """The parts of a file, with the bytes of each."""
    size = (folder / name).stat().st_size
    if kind == "parquet":
        yield from _row_groups(folder / name, name, size, most)
    elif kind == "jsonl":
        count = max(1, -(-size // most))
        borders = [size * number // count for number in range(count + 1)]
        for begin, end in itertools.pairwise(borders):
            yield Span(name, kind, size, begin, end), end - begin
    else:
        yield Span(name, kind, size, 0, 1), size


def _row_groups(path: Path, name: str, size: int, most: int) -> Iterator[tuple[Span, int]]:
    """Neighbouring row groups together, as long as they are small."""
    weights = row_group_bytes(path)
    begin = weight = 0
    for number, one in enumerate(weights):
        if number > begin and weight + one > most:
            yield Span(name, "parquet", size, begin, number), weight
            begin, weight = number, 0
        weight += one
    yield Span(name, "parquet", size, begin, len(weights)), weight


def row_group_bytes(path: Path) -> list[int]:
    """What each row group of a Parquet file fills."""
    import pyarrow
    import pyarrow.parquet

    try:
        facts = pyarrow.parquet.read_metadata(pyarrow.OSFile(os.fsencode(path)))
        return [facts.row_group(number).total_byte_size for number in range(facts.num_row_groups)]
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read as a Parquet file ({error}); copy it again, or leave it out") from error
