"""Simulates a disk that fails at a given call, and mounts small and read-only disks for one process."""

import ctypes
import errno
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal
from unittest.mock import patch

CALLS = ("replace", "rename", "unlink", "remove", "rmdir", "fsync", "mkdir", "utime")
Fault = Literal["die", "EIO", "ENOSPC"]
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_PRIVATE = 0x40000 | 0x4000  # nothing mounted here is seen by others
READ_ONLY = 1


class Disk:
    """Counts the calls that change names or flush, and lets the n-th one fail."""

    def __init__(self, fail_at: int = -1, fault: Fault = "EIO") -> None:
        self.count, self.fail_at, self.fault = 0, fail_at, fault

    def _wrapped(self, call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **more: object) -> object:
            here = self.count == self.fail_at
            self.count += 1
            if here and self.fault in ("EIO", "ENOSPC"):
                number = getattr(errno, self.fault)
                raise OSError(number, os.strerror(number))
            try:
                return call(*args, **more)
            finally:
                if here:  # dying before the next call is the same as dying after this one
                    os.kill(os.getpid(), signal.SIGKILL)

        return wrapper

    @contextmanager
    def failing(self) -> Iterator["Disk"]:
        with ExitStack() as stack:
            for name in CALLS:
                stack.enter_context(patch.object(os, name, self._wrapped(getattr(os, name))))
            yield self


def in_a_copy(work: Callable[[], int | None]) -> int:
    """Run something in a copy of this process; minus the signal that ended it, or what it returned."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = work() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def mount(folder: Path, size: str = "1m", flags: int = 0) -> None:
    """A disk of its own at a folder, for this process alone; call it in a copy only.

    Raises:
        OSError: this machine does not let us.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS):  # who may not do that may do it in a world of users of its own
        user, group = os.getuid(), os.getgid()
        if libc.unshare(_NEW_USER | _NEW_MOUNTS):
            raise OSError(ctypes.get_errno(), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    libc.mount(None, b"/", None, _PRIVATE, None)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, f"size={size}".encode()):
        raise OSError(ctypes.get_errno(), "mount")


def fill(folder: Path) -> None:
    """Leave no room on the disk of a folder."""
    with (folder / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 512):
            pass


def can_mount(folder: Path) -> bool:
    """Whether this machine lets a test have a disk of its own."""

    def attempt() -> int:
        try:
            mount(folder)
        except OSError:
            return 1
        return 0

    return in_a_copy(attempt) == 0
