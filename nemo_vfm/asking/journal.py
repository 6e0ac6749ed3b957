# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps answers in one file that is only appended to: a line each, found again by key.

What was put is in the system's hands before `put` returns, so a process that is killed loses nothing that it has put.
A line that was torn by the end of the process or the machine is cut off at the next opening.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from nemo_vfm.asking.file_lock import file_lock
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.types.json_value import Json

_OPEN: dict[Path, "_Shared"] = {}
_LOCK = threading.Lock()


class Journal:
    """Where answers are kept between runs. Stages and recipes may share one file; two processes may not at once.

    Args:
        file: a line of JSON for each answer.
    """

    def __init__(self, *, file: Path) -> None:
        self.file = Path(file)

    @contextmanager
    def open(self) -> Iterator["OpenJournal"]:
        """Hold it while the block runs; whoever opens it meanwhile in this process gets the same one.

        Raises:
            UserError: another process holds it, or it cannot be read or written.
        """
        path = self.file.absolute()
        with _LOCK:
            shared = _OPEN.get(path) or _Shared(path)
            _OPEN[path] = shared
            shared.users += 1
        try:
            yield shared.journal
        finally:
            with _LOCK:
                shared.users -= 1
                if not shared.users:
                    del _OPEN[path]
                    shared.close()


class _Shared:
    """An open journal, its lock, and how many use it."""

    def __init__(self, path: Path) -> None:
        self.users = 0
        with ExitStack() as stack:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(path))
            self.journal = stack.enter_context(closing(OpenJournal(path)))
            self.close = stack.pop_all().close


class OpenJournal:
    """A journal that this process holds. Threads may share it.

    Args:
        path: of the file; it is made where there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, _descriptor(path)
        self._lock, self._closed = threading.Lock(), False
        self._places: dict[str, tuple[int, int]] = {}  # key: (offset, bytes)
        self._end = 0
        self._read_all()

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> Json | None:
        """What was put under this key last; None where nothing was, or where it was forgotten."""
        with self._lock:
            place = self._places.get(key)
            return None if place is None else json.loads(os.pread(self._descriptor, place[1], place[0]))["value"]

    def put(self, key: str, value: Json) -> None:
        """Append it.

        Raises:
            UserError: the disk does not take it; the file is as it was.
        """
        with self._lock:
            self._places[key] = self._append({"key": key, "value": value})

    def forget(self, key: str) -> None:
        """As if it had never been put."""
        with self._lock:
            if self._places.pop(key, None) is not None:
                self._append({"key": key, "forgotten": True})

    def close(self) -> None:
        """Flush it to the disk. A thread that has an answer afterwards cannot keep it, and does not fail."""
        with self._lock:
            self._closed = True
            os.fsync(self._descriptor)
            os.close(self._descriptor)

    def _append(self, entry: Json) -> tuple[int, int]:
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        place = (self._end, len(line))
        if self._closed:
            return place
        try:
            written = os.write(self._descriptor, line)
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            os.ftruncate(self._descriptor, self._end)
            raise UserError(f"cannot write to {self._path}: {error.strerror}; what it holds is whole: make room and "
                            "run again") from error  # fmt: skip
        self._end += len(line)
        return place

    def _read_all(self) -> None:
        """Find every line, and cut off a last one that is torn."""
        unreadable = 0
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                unreadable += not self._index(line)
                self._end += len(line)
        os.ftruncate(self._descriptor, self._end)
        if unreadable:
            warn(f"{self._path}: {unreadable} lines cannot be read; what they answered is asked again")

    def _index(self, line: bytes) -> bool:
        match _entry(line):
            case {"key": str(key), "forgotten": True}:
                self._places.pop(key, None)
            case {"key": str(key), "value": _}:
                self._places[key] = (self._end, len(line))
            case _:
                return False
        return True


def _descriptor(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}; choose another file") from error


def _entry(line: bytes) -> Json:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
