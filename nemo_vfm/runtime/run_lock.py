"""Locks a run folder with a lease and a heartbeat; only the lease of a dead owner is taken over.

The lock names its owner. If the owner is a process visible to us (same boot, same process namespace), the system says
whether it is alive. An owner on another machine or in another container has only its heartbeat: a new time on the
lock's file every few seconds. It counts as dead after a long silence, which is observed and not only computed. The
clock is the file system's, so that the clocks of two machines need not agree.
"""

import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from nemo_vfm.core import lease_registry
from nemo_vfm.core.errors import FolderInUse, RunFolderError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.ranks import SILENCE_S
from nemo_vfm.core.storage.files import open_regular
from nemo_vfm.core.types.job import LOCK

BEAT_S = 10.0  # between two heartbeats
LOOK_S = 25.0  # how long a lock that is old by the clock is watched all the same: clocks can be set
_BUSY_S = 10.0  # for others who just look at the lock, too
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # some cluster file systems
_SETTLE_S = 1.0
_MOST = 4096  # characters that are read of a lock


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds a folder."""

    host: str  #: its machine's name, for people
    pid: int  #: its number in its namespace
    born: str  #: when it started, in clock ticks since boot: numbers of processes are given out again
    world: str  #: boot and process namespace; only in the same one do `pid` and `born` mean anything
    token: str = field(default_factory=lambda: uuid4().hex)  #: of this one time of holding

    @classmethod
    def me(cls) -> "Owner":
        return cls(socket.gethostname(), os.getpid(), _start_time(os.getpid()), _world())

    def is_dead(self) -> bool | None:
        """Whether it has ended; None where it cannot be seen from here."""
        if self.world != _world():
            return None
        return _start_time(self.pid) != self.born

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold a folder while the block runs."""
    path, me = folder.absolute() / LOCK, Owner.me()
    try:
        while True:  # write our name where there is none, or that of a dead owner
            with _exclusively(path) as (file, guarded):
                text = file.read(_MOST)
                owner = _owner(text)
                dead = not text.strip("\0 \n") or (owner is not None and owner.is_dead())
                if dead:
                    _overwrite(file, me)
            if dead:
                break
            if owner is not None and owner.is_dead() is False:
                raise _in_use(path, str(owner))
            _watch(path, text, str(owner) if owner else "an owner whose name cannot be read")
        if not guarded:
            time.sleep(_SETTLE_S)  # nobody guards the moment of writing here: of two writers the later one has it
        if not _is_mine(path, me):
            raise _in_use(path, "another process, which was faster")
    except OSError as error:
        raise RunFolderError(f"cannot hold {folder}: {error.strerror}; choose another run_dir") from error
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, me, stop), name="lease", daemon=True)
    try:
        with lease_registry.register_lease(str(folder), lambda: _is_mine(path, me)):
            beat.start()
            try:
                yield
            finally:
                stop.set()
                beat.join()
    finally:
        if folder.is_dir() and _is_mine(path, me):
            with suppress(OSError, RunFolderError), _exclusively(path) as (file, _):
                if _owner(file.read(_MOST)) == me:
                    _overwrite(file, None)


def holder(folder: Path) -> tuple[Owner | None, bool]:
    """Who holds a folder (None: nobody, or nobody that can be read), and whether it seems alive. Nothing is changed."""
    try:
        text = _read(folder / LOCK)
        owner = _owner(text)
        if not text or (owner is not None and owner.is_dead()):
            return owner, False
        if owner is not None and owner.is_dead() is False:
            return owner, True
        return owner, time.time() - (folder / LOCK).stat().st_mtime < SILENCE_S
    except OSError:
        return None, False


def _watch(path: Path, text: str, name: str) -> None:
    """Look at a lock whose owner cannot be seen until it moves (then it is alive), or has been silent long enough.

    Returns:
        Once its owner is dead; the lock is then empty.
    """
    began, before = time.monotonic(), _mtime(path)
    needed = max(LOOK_S, min(SILENCE_S, SILENCE_S - _age_s(path)))  # a time to come is a clock that was set
    info(f"{_name(path)} is locked by {name}; waiting up to {needed:.0f} s for a heartbeat")
    while time.monotonic() - began < needed:
        time.sleep(min(1.0, BEAT_S / 10))
        if _mtime(path) != before or _read(path) != text:
            raise _in_use(path, name)
    with _exclusively(path) as (file, _):
        if file.read(_MOST) != text or _mtime(path) != before:
            raise _in_use(path, name)
        warn(f"taking over {_name(path)}: {name} has sent no heartbeat for {max(needed, _age_s(path)):.0f} s")
        _overwrite(file, None)


def _name(path: Path) -> str:
    """The folder as the user knows it: the lock's own path is absolute, since a job may change directory."""
    return os.path.relpath(path.parent) if path.is_relative_to(Path.cwd()) else str(path.parent)


def _in_use(path: Path, name: str) -> RunFolderError:
    return FolderInUse(f"{_name(path)} is in use by {name}; wait for it, end it, or choose another run_dir")


@contextmanager
def _exclusively(path: Path) -> Iterator[tuple[TextIO, bool]]:
    """The open lock while nobody else looks at it, and whether that could be guarded.

    `flock` guards only the moment of looking and writing: held longer it would pass to data loader workers, which may
    outlive a killed parent by seconds.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        why = "its lock is a link" if error.errno == errno.ELOOP else error.strerror
        raise RunFolderError(f"cannot write in {_name(path)}: {why}; choose another run_dir") from error
    with os.fdopen(descriptor, "r+", encoding="utf-8", errors="replace") as file:
        until, guarded = time.monotonic() + _BUSY_S, False
        while not guarded:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                guarded = True
            except BlockingIOError:
                if time.monotonic() > until:
                    raise _in_use(path, "a process that is checking its lock and does not finish") from None
                time.sleep(0.02)
            except OSError as error:
                if error.errno in _NO_FLOCK:
                    break
                raise RunFolderError(f"cannot lock {_name(path)}: {error.strerror}; choose another run_dir") from error
        yield file, guarded


def _overwrite(file: TextIO, owner: Owner | None) -> None:
    file.seek(0)
    file.truncate()
    if owner is not None:
        file.write(json.dumps(asdict(owner)))
    file.flush()


def _beat(path: Path, me: Owner, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        lease_registry.stop_if_lost()
        with suppress(
            OSError
        ):  # a disk that fails for a moment; silence is counted from the last beat that came through
            if path.exists() or not path.parent.is_dir():
                os.utime(path)  # the file system's own clock
            else:  # somebody cleaned up
                path.write_text(json.dumps(asdict(me)))


def _is_mine(path: Path, me: Owner) -> bool:
    """Whether the lock is ours; one that is gone or cannot be read counts as ours."""
    try:
        return _owner(_read(path)) == me
    except OSError:
        return True


def _owner(text: str) -> Owner | None:
    try:
        found = Owner(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (found.host, found.born, found.world, found.token)
    is_valid = type(found.pid) is int and 0 < found.pid < 2**31 and all(isinstance(text, str) for text in texts)
    return found if is_valid else None


def _read(path: Path) -> str:
    with open_regular(path) as file:
        return file.read(_MOST).decode("utf-8", "replace")


def _mtime(path: Path) -> int:
    with open_regular(path) as file:  # opening asks a network file system anew; a bare stat may be a minute old
        return os.fstat(file.fileno()).st_mtime_ns


def _age_s(path: Path) -> float:
    """How old a file is by the clock of the file system that it lies on."""
    probe = path.with_name(f"{LOCK}.{os.getpid()}.tmp")
    try:
        probe.write_text("now")
        return (_mtime(probe) - _mtime(path)) / 1e9
    finally:
        probe.unlink(missing_ok=True)


def _world() -> str:
    """The boot of this machine and the namespace of its process numbers; the host's name where a system has neither."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{sys.platform} {socket.gethostname()}"


def _start_time(process: int) -> str:
    """When a process started; other texts where there is none, or where it has ended and nobody has noticed yet."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        is_gone = Path("/proc/self/stat").exists()
        try:
            os.kill(process, 0)
        except OSError as error:  # somebody else's process is there, too
            is_gone = is_gone or isinstance(error, ProcessLookupError)
        return "never" if is_gone else "unknown"
    fields = stat.rpartition(")")[2].split()
    return "dead" if fields[0] in ("Z", "X") else fields[19]
