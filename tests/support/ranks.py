# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A function and a number of ranks in, what it returned on each real process, joined over gloo, out.

The processes are started once for a test session and kept, since importing torch in each costs seconds; every call
joins them anew. A call that fails or takes too long ends them all, and the next call starts fresh ones.
"""

import atexit
import os
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MOST = 4
TIMEOUT_S = 240.0  # of one call: two cores are shared by all ranks, and by whatever else runs
_POOL: list[tuple[Any, Connection]] = []


class RankFailed(AssertionError):
    """A rank raised, died or hung; the text has its rank and its traceback."""


def on_ranks(count: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """What `function(rank, *arguments)` returned on each of `count` ranks, by rank.

    The function stands at the top of a module; arguments and results are pickled. torch.distributed is joined before
    it (gloo) and left after it, and the environment says RANK and so on, as torchrun would.
    """
    assert 1 <= count <= MOST, f"there are at most {MOST} ranks"
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        for rank, (_, pipe) in enumerate(_started()[:count]):
            pipe.send((function, arguments, rank, count, port, str(Path(folder) / "store")))
        found = _answers(_POOL[:count], time.monotonic() + timeout_s)
    bad = [f"rank {rank}: {text}" for rank, (ok, text) in enumerate(found) if not ok]
    if bad:
        stop()
        raise RankFailed("\n".join(bad))
    return [value for _, value in found]


def stop() -> None:
    """End all processes."""
    for process, pipe in _POOL:
        pipe.close()
        process.kill()
    for process, _ in _POOL:
        process.join(10)
    _POOL.clear()


def _started() -> list[tuple[Any, Connection]]:
    context = get_context("spawn")
    if any(not process.is_alive() for process, _ in _POOL):
        stop()
    while len(_POOL) < MOST:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        _POOL.append((process, ours))
    return _POOL


def _answers(members: Sequence[tuple[Any, Connection]], deadline: float) -> list[tuple[bool, Any]]:
    """One for each rank. After the first that failed the others get five seconds: they may wait for it for ever."""
    found: list[tuple[bool, Any] | None] = [None] * len(members)
    while any(answer is None for answer in found) and time.monotonic() < deadline:
        for rank, (process, pipe) in enumerate(members):
            if found[rank] is None and pipe.poll(0.02):
                try:
                    found[rank] = pipe.recv()
                except EOFError:
                    process.join(5)
                    found[rank] = (False, f"died with exit code {process.exitcode}")
                if not found[rank][0]:  # type: ignore[index]
                    deadline = min(deadline, time.monotonic() + 5)
    return [answer or (False, "did not answer in time") for answer in found]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _serve(pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from tests.support import loopback

    loopback.watch()
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            function, arguments, rank, count, port, store = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, _joined(function, arguments, rank, count, port, store))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send(answer)


def _joined(
    function: Callable[..., Any], arguments: tuple[Any, ...], rank: int, count: int, port: int, store: str
) -> Any:
    from datetime import timedelta

    import torch.distributed as dist

    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count, timeout=limit)
    try:
        return function(rank, *arguments)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


atexit.register(stop)
