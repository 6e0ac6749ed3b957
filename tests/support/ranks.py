"""Runs a function on real processes joined over gloo, and returns the result of each rank.

One pool of processes (`nemo_vfm/parallel/verify/rank_pool.py`) serves a whole test session, and none of them may leave
this machine. They are copies of the server of `preloaded.py`: each that began anew took 4 CPU seconds to import torch
and what it was asked for.
"""

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe, current_process
from multiprocessing.connection import Connection
from typing import Any

from nemo_vfm.parallel.verify import rank_pool
from nemo_vfm.parallel.verify.rank_pool import RankFailed as RankFailed  # what tests expect of a rank that raises
from tests.support import loopback, preloaded

MOST = 4
TIMEOUT_S = 240.0  # of one call: two cores are shared by all ranks, and by whatever else runs


def on_ranks(count: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """What `function(rank, *arguments)` returned on each of `count` ranks, by rank.

    The function stands at the top of a module; arguments and results are pickled. The environment says where ranks
    may meet, too, for code that asks it.
    """
    return POOL.call(count, _with_address, function, free_port(), *arguments, timeout_s=timeout_s)


def _with_address(rank: int, function: Callable[..., Any], port: int, *arguments: Any) -> Any:
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    return function(rank, *arguments)


def begin_with(*modules: str) -> None:
    """Let ranks begin with these imported: once for all in place of 4 CPU seconds for each."""
    if not _IMPORTED.issuperset(modules):
        stop()
        preloaded.import_too(modules)
        _IMPORTED.update(modules)


class _Copy(preloaded.Child):
    """A copy of the server as a member of a pool."""

    @property
    def exitcode(self) -> int | None:
        return self.poll()

    def is_alive(self) -> bool:
        return self.poll() is None

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout)


class _Copies(rank_pool.Pool):
    def _begin(self) -> tuple[_Copy, Connection]:
        (ours, theirs), key = Pipe(), bytes(current_process().authkey)  # by which one family send each other tensors
        code = f"from {__name__} import serve; serve({theirs.fileno()}, {key!r})"
        with theirs:
            return _Copy([sys.executable, "-c", code], pass_fds=[theirs.fileno()], cwd=preloaded.ROOT), ours


def serve(fd: int, key: bytes) -> None:
    current_process().authkey = key
    loopback.watch()
    rank_pool.answer_calls(Connection(fd))


def stop() -> None:
    POOL.stop()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


_IMPORTED: set[str] = set()
POOL = _Copies(MOST)
atexit.register(stop)
