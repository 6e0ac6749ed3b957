"""Calls a function on several processes of this machine and returns the result of each rank.

The processes are started once and kept, since importing torch in each costs seconds. Every call joins them anew over
gloo, by a file and the loopback device. Where one dies or does not answer in time, all are ended, and the next call
starts fresh ones. They end with the process that started them, however that ends.
"""

import functools
import gc
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from nemo_vfm.core.errors import LostRank, NemoVfmError
from nemo_vfm.core.process import end_children, follow_parent, how_it_ended, start_child

_WAITS = timedelta(seconds=100)  # of one rank for another, in a collective: first steps are slow on a busy machine
_AFTER_A_FAILURE_S = 5.0  # for the others, who may wait for the one that failed for ever
_POLL_S = 0.02
_HUNG, _DIED = "did not answer in time", "its process"
_WAITED = re.compile(f"{_HUNG}|{LostRank.__name__}|gloo|Connection (?:closed|reset) by peer")


#: Runs on each rank once torch.distributed is joined, as `function(rank, *arguments)`. It must be at the top level of a
#: module, because it is sent by name.
OnRank = Callable[..., Any]


class RankFailed(NemoVfmError):
    """A rank raised, died or hung; the text has its number and what it said, a traceback where there is one."""

    def __init__(self, said: Mapping[int, str]) -> None:
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in said.items()))
        self.said = dict(said)

    def first_cause(self) -> str:
        """The last line of the rank that began it, as far as can be told: others only waited for it in vain."""
        began = {rank: text for rank, text in self.said.items() if not _WAITED.search(text)}
        rank, text = next(iter((began or self.said).items()))
        return f"rank {rank}: {text.strip().splitlines()[-1]}"


class Pool:
    """Processes that wait for calls.

    Args:
        most: ranks that a call may have.
        first: is called once in each process, before anything else.
    """

    def __init__(self, most: int, first: OnRank | None = None) -> None:
        self.most, self._first = most, first
        self._members: list[tuple[Any, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def call(self, count: int, function: OnRank, *arguments: Any, timeout_s: float = 240.0) -> list[Any]:
        """What `function(rank, *arguments)` returned on each of `count` ranks, by rank.

        The environment says RANK and so on, as torchrun would.

        Raises:
            RankFailed: on any of them it raised, died, or did not end in time.
        """
        assert 1 <= count <= self.most, f"at most {self.most} ranks are possible"
        with tempfile.TemporaryDirectory() as folder:
            for rank, (_, pipe) in enumerate(self._start(count)[:count]):
                pipe.send((function, arguments, rank, count, str(Path(folder) / "store")))
            found = _answers(self._members[:count], time.monotonic() + timeout_s)
        if bad := {rank: text for rank, (well, text) in enumerate(found) if not well}:
            if any(text.startswith((_HUNG, _DIED)) for text in bad.values()):
                self.stop()
            raise RankFailed(bad)
        return [value for _, value in found]

    def stop(self) -> None:
        """End all processes."""
        end_children(self._members)
        self._members.clear()

    def _start(self, count: int) -> list[tuple[Any, Connection]]:
        if any(not process.is_alive() for process, _ in self._members):
            self.stop()
        while len(self._members) < count:
            self._members.append(self._begin())
        return self._members

    def _begin(self) -> tuple[Any, Connection]:
        """A process, or what has its `exitcode`, `is_alive`, `kill` and `join`, and a pipe to it."""
        return start_child(_serve, self._first)


def _answers(members: Sequence[tuple[Any, Connection]], deadline: float) -> list[tuple[bool, Any]]:
    """One for each rank: whether it went well, and the value or the traceback."""
    found: dict[int, tuple[bool, Any]] = {}
    while len(found) < len(members) and time.monotonic() < deadline:
        for rank, (process, pipe) in enumerate(members):
            if rank not in found and pipe.poll(_POLL_S):
                try:
                    found[rank] = pipe.recv()
                except (EOFError, ConnectionResetError):
                    process.join(5)
                    found[rank] = (False, f"{_DIED} {how_it_ended(process.exitcode)}")
                if not found[rank][0]:
                    deadline = min(deadline, time.monotonic() + _AFTER_A_FAILURE_S)
    return [found.get(rank, (False, _HUNG)) for rank in range(len(members))]


def _serve(pipe: Connection, first: OnRank | None) -> None:
    follow_parent()
    if first is not None:
        first(0)
    answer_calls(pipe)


def answer_calls(pipe: Connection) -> None:
    """Do what the pool asks for by its pipe, until that is closed."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    import torch

    torch.set_num_threads(1)
    known = 0
    while True:
        try:
            function, arguments, rank, count, store = pipe.recv()
        except EOFError:
            return
        if len(sys.modules) > known:  # what they made stays: to look through it took 0.07 s after each call
            gc.collect()
            gc.freeze()
            known = len(sys.modules)
        try:
            answer = (True, _run_on_rank(function, arguments, rank, count, store))
        except BaseException:
            answer = (False, traceback.format_exc())
        with suppress(BrokenPipeError):
            pipe.send(answer)


def _run_on_rank(function: OnRank, arguments: Sequence[Any], rank: int, count: int, store: str) -> Any:
    import torch.distributed as dist

    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    os.environ.update({name: str(value) for name, value in names.items()})
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=count, timeout=_WAITS)
    dist.barrier()  # one that is done at once would leave while others still connect to it, and they would fail
    try:
        return function(rank, *arguments)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        # Let go of what still refers to the groups of this call: a gloo group that lives on has a thread that wakes up
        # a hundred times a second. After 300 calls there were 390 of them in each process, which took most of two
        # cores. Torch offers nothing for this: it remembers by mesh how tensors travel and how products are split,
        # without end.
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.distributed"):
                _forget_cached(module)
        if planners := sys.modules.get("torch.distributed.tensor._redistribute"):
            getattr(planners, "_planner_cache", {}).clear()
        if "torch.distributed.tensor" in sys.modules:
            from torch.distributed.tensor import debug

            getattr(debug, "_clear_sharding_prop_cache", int)()
        gc.collect()


def _forget_cached(owner: object) -> None:
    """Empty the caches of a module's functions, and of its classes' methods."""
    for kept in list(vars(owner).values()):
        function = kept.__func__ if type(kept) is staticmethod else kept
        if type(function) is functools._lru_cache_wrapper:  # isinstance would ask what is deprecated there
            function.cache_clear()
        elif type(kept) is type and not isinstance(owner, type):
            _forget_cached(kept)
