"""Reads files of lines that are packed by gzip, bzip2 or Zstandard as they were before."""

import bz2
import gzip
import io
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, cast


def decompress(name: str, file: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """A file's bytes as they were before they were packed, which its name says.

    Of a file that breaks off, a buffer's worth is lost at most.
    """
    match Path(name.lower()).suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(file, "rb"))
        case ".bz2":
            return bz2.open(file, "rb")
        case ".zst":
            import pyarrow

            return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"), 1 << 16)
    return nullcontext(file)
