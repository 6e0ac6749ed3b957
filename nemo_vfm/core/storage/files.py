"""Writes files that are either whole or absent: temporary name, fsync, rename, marker last."""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_native_id
from typing import Any, BinaryIO

#: What is read whole. The largest of ours, the index of a shard folder, has some 200 bytes a clip.
MAX_BYTES = 4 << 30

_LONG_NAME = 200  # bytes; most file systems allow 255, and a temporary name has some 20 more


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is flushed to disk and renamed to `path`.

    On an exception the temporary file is removed and `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: writers such as PyAV choose the container by it.
    # A thread's number, not the process's: two threads that found the same of equal inputs write one file at once.
    stem, suffix = path.stem, path.suffix
    if len(os.fsencode(path.name)) > _LONG_NAME:
        stem, suffix = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16], suffix[:16]
    temporary = path.with_name(f".{stem}.{get_native_id()}.tmp{suffix}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to disk, so that a rename that follows survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write a whole UTF-8 file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically; NaN and infinity are refused, since other readers cannot read them.

    A byte of a file's name that is no text is an escape of JSON, and comes back as it was.
    """
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    write_bytes(path, text.encode(errors="backslashreplace"))


def is_full(error: BaseException) -> bool:
    """Whether it says that a disk is full: nothing else would fare better, so a run has to stop."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)  # FFmpeg's own errors have it, too


def real_path(path: Path) -> Path:
    """Where a path leads; links in a circle lead to themselves, where `resolve` would raise RuntimeError."""
    return Path(os.path.realpath(path))


def is_file(path: Path) -> bool:
    """Whether it is a regular file; a name that is longer than a file's may be is none, where `Path.is_file` raises."""
    try:
        return path.is_file()
    except OSError:
        return False


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read its bytes; anything else is refused at once.

    A plain `open` waits for ever for a FIFO that nobody writes to, and a device such as /dev/zero never ends.

    Raises:
        OSError: it cannot be opened, or it is no regular file.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb")
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file.

    Raises:
        OSError: it cannot be read, is no regular file, or holds more than `max_bytes`.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(path))
        return file.read()


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Read a JSON file; see `read_bytes`."""
    return json.loads(read_bytes(path, max_bytes))


def read_json_or_none(path: Path) -> Any:
    """The JSON in a file; None where it is missing or not whole."""
    try:
        return read_json(path)
    except (OSError, ValueError, RecursionError):
        return None


def read_json_object(path: Path) -> dict[str, Any]:
    """The same where only a mapping is of use; empty where there is none."""
    found = read_json_or_none(path)
    return found if isinstance(found, dict) else {}


def sha256_file(path: Path) -> str:
    """The hexadecimal sha256 of a file's bytes, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_folder(folder: Path) -> str:
    """A hexadecimal sha256 of the names and the bytes of all files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return sha256_text("\n".join(f"{path.relative_to(folder)} {sha256_file(path)}" for path in files))


def last_records(file: Path, max_bytes: int = 256 << 10) -> Iterator[dict[str, Any]]:
    """JSON objects, a line each, the newest first, from the end of a file that others append to: its last `max_bytes`.

    Half a line, and what is no object, is passed over; a file that cannot be read has none.
    """
    try:
        with open_regular(file) as data:
            data.seek(max(0, os.fstat(data.fileno()).st_size - max_bytes))
            lines = data.read(max_bytes).split(b"\n")
    except OSError:
        return
    for line in reversed(lines):
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record


def drop_steps_after(file: Path, step: int) -> None:
    """Keep the lines of JSON whose `step` is at most so many; one that is half-written goes, too."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    kept = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # a power cut may leave any bytes at the end
            kept += [line + b"\n"] * (json.loads(line)["step"] <= step)
    if lines:
        write_bytes(file, b"".join(kept))


def sha256_text(text: str) -> str:
    """The hexadecimal sha256 of a text's UTF-8 bytes; half a character, as in names of files, counts as it is."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
