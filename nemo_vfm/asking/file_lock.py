"""Locks a file for one process, by a lock of the system that ends with the process, however that ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nemo_vfm.core.errors import UserError


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold `<path>.lock` while the block runs.

    A record lock is not passed to child processes, as `flock` is. But it is lost as soon as the process closes any
    descriptor of the file: so it has a file of its own, which nobody else opens.

    Raises:
        UserError: another process holds it, or the file system has no locks.
    """
    own = path.with_name(f"{path.name}.lock")
    try:
        descriptor = os.open(own, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UserError(f"cannot open {own}: {error.strerror}; choose another place for {path.name}") from error
    try:
        _take(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise UserError(
            f"{path} is in use by another process: wait for it, end it, or give this run another file"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be locked: {error.strerror}; put it on another file system") from error
