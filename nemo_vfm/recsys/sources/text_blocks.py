"""Reads text files, plain or in gzip, in blocks of whole lines that begin at any line."""

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import open_regular
from nemo_vfm.recsys.sources.log_reading import LogPosition

#: Text that is parsed at once, about 35,000 rows of Criteo. Where a block ends follows from where it begins.
BLOCK_BYTES = 8 << 20
_TO_ASCII = bytes(range(128)) + b"\x01" * 128


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of a file; the header is never among them."""

    file: str  #: its path
    text: bytes  #: in ASCII; any other byte, and a carriage return that ends no line, is the byte 1
    num_lines: int  #: how many
    end: LogPosition  #: where to go on
    share: float  #: of all files' bytes, as they are on disk, up to there


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Text files in order."""

    paths: Sequence[Path]  #: those that end in .gz are unpacked
    header: str = ""  #: the first line of each file, where they have one

    def blocks(self, begin: LogPosition) -> Iterator[TextBlock]:
        """All lines from `begin` on."""
        sizes = sizes_of(self.paths)
        for number in range(begin.file, len(self.paths)):
            at = begin if number == begin.file else LogPosition(number, row=begin.row)
            with open_regular(self.paths[number]) as raw:
                for text, end in self._texts(raw, at):
                    done = sum(sizes[:number]) + min(raw.tell(), sizes[number])
                    lines = end.line - max(at.line, len(self.header) > 0)
                    yield TextBlock(str(self.paths[number]), text, lines, end, done / max(1, sum(sizes)))
                    at = begin = end

    def _texts(self, raw: BinaryIO, at: LogPosition) -> Iterator[tuple[bytes, LogPosition]]:
        path = self.paths[at.file]
        file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
        with named_damage(path, at):
            if self.header:
                line = file.readline(BLOCK_BYTES)
                found = line.decode("utf-8-sig", "replace").strip()
                if found != self.header:
                    raise UserError(f"{path} begins with {found[:200]!r}, but {self.header!r} was expected")
                at = max(at, LogPosition(at.file, len(line), 1, at.row), key=lambda one: one.offset)
            file.seek(at.offset)
        rest = b""
        while True:
            with named_damage(path, at):
                text = rest + file.read(BLOCK_BYTES - len(rest))
            if not text:
                return
            cut = text.rfind(b"\n") + 1 if len(text) == BLOCK_BYTES else len(text)
            if not cut:
                raise DataError(f"line {at.line + 1} of {path} is longer than {BLOCK_BYTES:,} bytes; is it text?")
            text, rest = text[:cut], text[cut:]
            lines = text.count(b"\n") + (not text.endswith(b"\n"))
            at = LogPosition(at.file, at.offset + cut, at.line + lines, at.row + lines)
            # Arrow ends a line at each carriage return, and fails on a row of too many columns that is not UTF-8, or
            # that it cuts within a letter to show it. Cells that are read are numbers: they have no other bytes.
            text = text if text.isascii() else text.translate(_TO_ASCII)
            yield re.sub(rb"\r(?!\n)", b"\x01", text) if b"\r" in text else text, at


def sizes_of(paths: Sequence[Path]) -> list[int]:
    """Bytes of each file."""
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no file {path}; paths must name the files of the log, in order")
    return [path.stat().st_size for path in paths]


@contextmanager
def named_damage(path: Path, at: LogPosition) -> Iterator[None]:
    """Raise a DataError with the place where a file cannot be read."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:  # gzip's own error is an OSError
        raise DataError(f"{path} cannot be read beyond line {at.line}: {error}. Was it copied completely?") from error
