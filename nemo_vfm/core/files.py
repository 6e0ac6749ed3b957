# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Paths and bytes in, files that are whole or absent out: temporary name, fsync, rename, marker last."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is flushed to disk and renamed to `path`.

    On an exception the temporary file is removed and `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: writers such as PyAV choose the container by it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
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
    """Write indented JSON atomically; NaN and infinity are refused, since other readers cannot read them."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def is_full(error: BaseException) -> bool:
    """Whether it says that a disk is full: nothing else would fare better, so a run has to stop."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)  # FFmpeg's own errors have it, too


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_bytes())


def sha256_file(path: Path) -> str:
    """The hexadecimal sha256 of a file's bytes, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def last_records(file: Path, most_bytes: int = 256 << 10) -> Iterator[dict[str, Any]]:
    """JSON objects, a line each, the newest first, from the end of a file that others append to: its last `most_bytes`.

    Half a line, and what is no object, is passed over; a file that cannot be read has none.
    """
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - most_bytes))
            lines = opened.read(most_bytes).split(b"\n")
    except OSError:
        return
    for line in reversed(lines):
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record


def sha256_text(text: str) -> str:
    """The hexadecimal sha256 of a text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()
