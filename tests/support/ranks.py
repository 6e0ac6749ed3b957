"""Runs a function on real processes joined over gloo, and returns the result of each rank.

One pool of processes (`nemo_vfm/parallel/verify/rank_pool.py`) serves a whole test session, and none of them may leave
this machine.
"""

import atexit
import os
import socket
from collections.abc import Callable
from typing import Any

from nemo_vfm.parallel.verify.rank_pool import Pool
from nemo_vfm.parallel.verify.rank_pool import RankFailed as RankFailed  # what tests expect of a rank that raises

MOST = 4
TIMEOUT_S = 240.0  # of one call: two cores are shared by all ranks, and by whatever else runs


def on_ranks(count: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """What `function(rank, *arguments)` returned on each of `count` ranks, by rank.

    The function stands at the top of a module; arguments and results are pickled. The environment says where ranks
    may meet, too, for code that asks it.
    """
    return POOL.call(count, _with_address, function, _free_port(), *arguments, timeout_s=timeout_s)


def _with_address(rank: int, function: Callable[..., Any], port: int, *arguments: Any) -> Any:
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    return function(rank, *arguments)


def _watched(_: int) -> None:
    from tests.support import loopback

    loopback.watch()


def stop() -> None:
    """End all processes."""
    POOL.stop()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


POOL = Pool(MOST, _watched)
atexit.register(stop)
