# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A run folder in, the sole right to write in it out, until the process ends."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nemo_vfm.core.errors import RunFolderError

NAME = ".lock"


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold a folder.

    The file names its owner (host, process, start of the process). It outlives a kill; a lock whose owner is dead is
    taken over. `flock` guards only the moment of looking and writing: held longer it would pass to data loader
    workers, which may outlive a killed parent by seconds.

    Raises:
        RunFolderError: a living process holds it.
    """
    owner = f"{socket.gethostname()} {os.getpid()} {_born(os.getpid())}"
    _exchange(folder / NAME, owner)
    try:
        yield
    finally:
        if folder.is_dir():
            _exchange(folder / NAME, "", expected=owner)


def _exchange(path: Path, text: str, expected: str | None = None) -> None:
    """Write the lock's text while nobody else looks at it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunFolderError(f"cannot write in {path.parent}: {error.strerror}; take another run_dir") from error
    with os.fdopen(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        holder = file.read().strip()
        if expected is None and _is_alive(holder):
            host, process, _ = holder.split()
            raise RunFolderError(f"{path.parent} is in use by process {process} on {host}; wait for it, end it, "
                                 f"or take another run_dir")  # fmt: skip
        if expected in (None, holder):
            file.seek(0)
            file.truncate()
            file.write(text)


def _is_alive(holder: str) -> bool:
    """Whether the process that a lock names still runs; one on another host counts as alive."""
    parts = holder.split()
    if len(parts) != 3:
        return False
    host, process, born = parts
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return born == _born(int(process))


def _born(process: int) -> str:
    """When a process started, in clock ticks since boot: numbers of processes are given out again."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "unknown"
    fields = stat.rpartition(")")[2].split()
    return "dead" if fields[0] == "Z" else fields[19]
