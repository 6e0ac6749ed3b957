"""Opens a range of bytes of a file as a read-only file, which refuses to be read in large pieces."""

import io
import os
from typing import BinaryIO

from nemo_vfm.core.errors import DataError


class Window(io.RawIOBase):
    """A read-only view of `size` bytes from `start`.

    The parsers of the standard library read a header's length from the file and then that many bytes at once; here
    such a read is refused beyond `cap` bytes. Content is read by `fill`, into memory whose size the caller has judged.

    Args:
        file: opened for reading bytes; shared, never closed from here.
        cap: most bytes of one read.
    """

    def __init__(self, file: BinaryIO, start: int, size: int, *, cap: int = 8 << 20) -> None:
        super().__init__()
        self.file, self.start, self.size, self.cap = file, start, size, cap
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Counted from the window's start."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """As of a file; never before the start."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError(f"byte {base + offset} lies before the file's start")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """At most to the window's end."""
        left = max(0, self.size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > self.cap:
            raise DataError(f"a header claims {wanted:,} bytes, more than the {self.cap:,} that are read at once")
        self.file.seek(self.start + self._at)
        data = self.file.read(wanted)
        self._at += len(data)
        return data

    def fill(self, start: int, size: int) -> bytearray:
        """`size` bytes from `start`, which must lie inside.

        Raises:
            DataError: they do not.
        """
        if start < 0 or size < 0 or start + size > self.size:
            raise DataError(f"bytes {start:,} to {start + size:,} are asked for, but there are {self.size:,}")
        data = bytearray(size)
        self.file.seek(self.start + start)
        if self.file.readinto(data) != size:  # type: ignore[attr-defined]
            raise DataError(f"the file ends before byte {start + size:,}")
        return data
