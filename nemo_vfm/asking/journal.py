"""Keeps answers in one file that is only appended to: a line each, found again by key.

What was put is in the system's hands before `put` returns, so a process that is killed loses nothing that it has put.
A line that was torn by the end of the process or the machine is cut off at the next opening.
"""

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from nemo_vfm.asking.file_lock import file_lock
from nemo_vfm.asking.journal_index import JournalIndex
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.write_path import WritePath, require_own
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.json_value import Json

_OPEN: dict[Path, "_Shared"] = {}
_LOCK = threading.Lock()
os.register_at_fork(after_in_child=_OPEN.clear)  # a copy of this process holds no lock


class Journal:
    """Where answers are kept between runs. Stages and recipes may share one file; two processes may not at once.

    Args:
        file: a line of JSON for each answer.
        others: files of other processes, from which answers are taken as they are at the opening. Nothing is written
            to them, and nobody is kept from writing.
    """

    def __init__(self, *, file: WritePath, others: Sequence[Path] = ()) -> None:
        self.file, self.others = Path(file), tuple(others)

    @contextmanager
    def open(self) -> Iterator["OpenJournal"]:
        """Hold it while the block runs; whoever opens it meanwhile in this process gets the same one.

        Raises:
            UserError: another process holds it, or it cannot be read or written.
        """
        path = self.file.absolute()
        with _LOCK:
            shared = _OPEN.get(path) or _Shared(path, self.others)
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

    def __init__(self, path: Path, others: Sequence[Path]) -> None:
        self.users = 0
        with ExitStack() as stack:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(path))
            self.journal = stack.enter_context(closing(OpenJournal(path, others)))
            self.close = stack.pop_all().close


@no_component
class OpenJournal:
    """A journal that this process holds. Threads may share it.

    Args:
        path: of the file; it is made where there is none.
        others: files that are read only.
    """

    def __init__(self, path: Path, others: Sequence[Path]) -> None:
        self._path, self._lock, self._closed = path, threading.Lock(), False
        require_own(path, b'{"key": "', "a journal of answers")
        with ExitStack() as stack:
            self._descriptor = stack.enter_context(_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_APPEND))
            self._own = JournalIndex(path, self._descriptor)
            self._others = [JournalIndex(one, stack.enter_context(_descriptor(one, os.O_RDONLY))) for one in others]
            os.ftruncate(self._descriptor, self._own.end)  # a last line that was torn
            self._close_files = stack.pop_all().close

    def get(self, key: str) -> Json | None:
        """What was put under this key last; None where nothing was, or where it was forgotten."""
        with self._lock:
            index = next((one for one in (self._own, *self._others) if key in one), None)
            return None if index is None else index.get(key)

    def put(self, key: str, value: Json) -> None:
        """Append it.

        Raises:
            UserError: the disk does not take it; the file is as it was.
        """
        self._append({"key": key, "value": value})

    def forget(self, key: str) -> None:
        """As if it had never been put here."""
        if key in self._own:
            self._append({"key": key, "forgotten": True})

    def close(self) -> None:
        """Flush it to the disk. A thread that has an answer afterwards cannot keep it, and does not fail."""
        with self._lock:
            self._closed = True
            os.fsync(self._descriptor)
            self._close_files()

    def _append(self, entry: Json) -> None:
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        with self._lock:
            if not self._closed:
                self._write(line)
                self._own.add(line)

    def _write(self, line: bytes) -> None:
        try:
            written = os.write(self._descriptor, line)
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            os.ftruncate(self._descriptor, self._own.end)
            raise UserError(f"cannot write to {self._path}: {error.strerror}; its content is intact: free some "
                            "space and run again") from error  # fmt: skip


@contextmanager
def _descriptor(path: Path, flags: int) -> Iterator[int]:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}; choose another file") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)
