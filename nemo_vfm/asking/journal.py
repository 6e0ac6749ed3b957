"""Keeps answers in one file that is only appended to: a line each, found again by key.

What was put is in the system's hands before `put` returns, so a process that is killed loses nothing that it has put.
A line that was torn by the end of the process or the machine is cut off at the next opening.
"""

import fcntl
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.network.chat import ChatAnswer
from nemo_vfm.core.network.thought import split_thought
from nemo_vfm.core.secret import conceal
from nemo_vfm.core.storage.write_path import WritePath, require_own
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.json_value import Json

_OPEN: dict[Path, "OpenJournal"] = {}
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
            journal = _OPEN.get(path) or OpenJournal(path, self.others)
            _OPEN[path] = journal
            journal.users += 1
        try:
            yield journal
        finally:
            with _LOCK:
                journal.users -= 1
                if not journal.users:
                    del _OPEN[path]
                    journal.close()


@no_component
class OpenJournal:
    """A journal that this process holds. Threads may share it.

    Args:
        path: of the file; it is made where there is none.
        others: files that are read only.
    """

    def __init__(self, path: Path, others: Sequence[Path]) -> None:
        self._path, self._lock, self._closed = path, threading.Lock(), False
        self.users = 0  # how many hold it
        with ExitStack() as stack:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A record lock is not passed to child processes, as `flock` is. But it is lost once the process closes any
            # descriptor of the file: so it has a file of its own, which nobody else opens.
            own, instead = path.with_name(f"{path.name}.lock"), f"another place for {path.name}"
            lock = stack.enter_context(_descriptor(own, os.O_RDWR | os.O_CREAT, instead))
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                raise UserError(
                    f"{path} is in use by another process: wait for it, end it, or give this run another file"
                ) from None
            except OSError as error:
                raise UserError(f"{path} cannot be locked: {error.strerror}; put it on another file system") from error
            require_own(path, b'{"key": "', "a journal of answers")
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
            try:
                os.fsync(self._descriptor)
            finally:
                self._close_files()

    def _append(self, entry: Json) -> None:
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        with self._lock:
            if self._closed:
                return
            try:
                written = os.write(self._descriptor, line)
                while written < len(line):
                    written += os.write(self._descriptor, line[written:])
            except OSError as error:
                os.ftruncate(self._descriptor, self._own.end)
                raise UserError(f"cannot write to {self._path}: {error.strerror}; its content is intact: free some "
                                "space and run again") from error  # fmt: skip
            self._own.add(line)


@no_component
class JournalIndex:
    """Where each key's last line is. Whoever opened the descriptor closes it; the path is for messages."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._places: dict[str, tuple[int, int]] = {}  # key: (offset, bytes)
        self.end = 0  # of the last whole line
        unreadable = 0
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                unreadable += not self.add(line)
        if unreadable:
            warn(f"{self._path}: {unreadable} lines cannot be read; their questions are asked again")

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def get(self, key: str) -> Json | None:
        """The value of a key; None where there is none."""
        place = self._places.get(key)
        return None if place is None else json.loads(os.pread(self._descriptor, place[1], place[0]))["value"]

    def add(self, line: bytes) -> bool:
        """Note the next line of the file; False where it is none of ours."""
        place, self.end = (self.end, len(line)), self.end + len(line)
        entry: Json = None
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
        match entry:
            case {"key": str(key), "forgotten": True}:
                self._places.pop(key, None)
            case {"key": str(key), "value": _}:
                self._places[key] = place
            case _:
                return False
        return True


@contextmanager
def _descriptor(path: Path, flags: int, instead: str = "another file") -> Iterator[int]:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}; choose {instead}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def without_secrets(said: ChatAnswer) -> ChatAnswer:
    """An answer without secrets, which a model may repeat."""
    return replace(said, text=conceal(said.text), model=conceal(said.model), revision=conceal(said.revision),
                   thought=conceal(said.thought))  # fmt: skip


def find_answer(journal: OpenJournal, key: str) -> ChatAnswer | None:
    """What was said under this key; None where nothing was, or nothing that is an answer."""
    entry: Json = journal.get(key)
    match entry:
        case {"text": str(text), "ending": ("success" | "truncated") as ending, "model": str(model),
              "revision": str(revision), "tokens_in": int(tokens_in), "tokens_out": int(tokens_out),
              "seconds": float(seconds)}:  # fmt: skip
            # Journals of before 2026-12 have thoughts in the text.
            thought, text = (str(entry["thought"]), text) if "thought" in entry else split_thought(text)
            if text.strip():
                return ChatAnswer(text, ending, model, revision, tokens_in, tokens_out, seconds, thought)
    return None
