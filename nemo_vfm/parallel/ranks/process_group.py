"""Connects a process that was started as one of several to the others, or says why it cannot, and agrees with them.

Ranks meet in a store: torchrun's or our launcher's, or one of rank 0's own under srun. There they compare their
requests, before they exchange a single tensor. Ranks must decide collectively, or they deadlock: in a single process,
or before the ranks have met, each function that asks all ranks returns its argument.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from nemo_vfm.core import preemption, progress, ranks
from nemo_vfm.core.errors import LostRank, UserError
from nemo_vfm.core.sanitize import beginning
from nemo_vfm.core.types.job import Run
from nemo_vfm.parallel.ranks.gather import Gather
from nemo_vfm.parallel.ranks.rank_watchdog import Heartbeat, OnLost, RankWatch
from nemo_vfm.parallel.ranks.rendezvous_store import PrefixStore, Store, address, connect

_POLL_S = 0.05
_TRACE_S = 4.0  # three signs of life that do not come; what there is to hear is heard in twice that time
_READ_S = 30.0  # for the others to read one line
_INNOCENT = "another rank is to blame"
_CURRENT: list["World"] = []


class World:
    """This rank's word with the others."""

    def __init__(self, store: Store, watch: RankWatch) -> None:
        self._store, self.watch, self.pulse = store, watch, Heartbeat()
        self._number = 0

    def tell(self, run: Run) -> None:
        """See `Teller`: from rank 0 to all."""
        self._store.set(self._order(), json.dumps({**asdict(run), "folder": str(run.folder)}))
        self._number += 1

    def tell_end(self, *, patience_s: float) -> None:
        """Nothing more comes; waits for a while until all have heard it."""
        self.watch.stop()  # from here on a silence is no death
        until, first_signal = time.monotonic() + patience_s, preemption.pending_signal()
        with suppress(RuntimeError), preemption.handle_signals():
            self._store.set(self._order(), "end")
            while not all(self._store.check([f"left/{rank}"]) for rank in range(1, ranks.count())):
                if time.monotonic() > until or preemption.pending_signal() != first_signal:
                    return
                time.sleep(_POLL_S)

    def hear(self) -> Run | None:
        """What rank 0 tells next, None at the end; it may take hours, since rank 0 may have work of its own."""
        try:
            pause_s = _POLL_S
            while not self._store.check([self._order()]):
                time.sleep(pause_s := min(1.0, 1.1 * pause_s))
            value = self._store.get(self._order()).decode()
            self._number += 1
            if value == "end":
                self._store.set(f"left/{ranks.rank()}", "1")
                return None
        except RuntimeError as error:
            raise LostRank(f"rank {ranks.rank()} can no longer reach rank 0 ({beginning(error)})") from error
        found = json.loads(value)
        return Run(**{**found, "folder": Path(found["folder"])})

    def confess(self, error: BaseException) -> None:
        """Say why this rank ends, before it does: rank 0 tells the user."""
        with suppress(RuntimeError):
            innocent = isinstance(error, LostRank)
            self._store.set(f"failed/{ranks.rank()}", _INNOCENT if innocent else f"{type(error).__name__}: {error}")
            self.watch.stop()

    def why_lost(self) -> str | None:
        """What rank 0 finds out about a rank that is gone, in a few seconds; None where there is no trace.

        torchrun and srun ask the others to end meanwhile: then there is no time to look further.
        """
        until, first_signal = time.monotonic() + 2 * _TRACE_S, preemption.pending_signal()
        with suppress(RuntimeError), preemption.handle_signals():
            while time.monotonic() < until and preemption.pending_signal() == first_signal:
                for rank in range(1, ranks.count()):
                    if self._store.check([f"failed/{rank}"]):
                        confession = self._store.get(f"failed/{rank}").decode()
                        if confession != _INNOCENT:
                            return f"rank {rank} of {ranks.count()} ended: {confession}"
                if silent := self.watch.silent_for(_TRACE_S):
                    who = f"rank {', '.join(map(str, silent))} of {ranks.count()}"
                    return f"{who} died, hangs, or its machine is down: its heartbeats have stopped"
                time.sleep(2 * _POLL_S)
            if elsewhere := self.watch.elsewhere():
                who = ", ".join(f"rank {rank} of {ranks.count()} {doing}" for rank, doing in elsewhere.items())
                return f"{who} for so long that the others, which wait for it, gave up"
        return None

    def _order(self) -> str:
        return f"order/{self._number}"


def now(doing: str) -> None:
    """What this rank does from here on, such as "takes step 3": said of it when the others wait for it in vain."""
    if _CURRENT:
        _CURRENT[0].watch.at(doing)


def take_pulse() -> None:
    """Between two steps: how quickly this rank's device computes, now and then, where there are others."""
    if _CURRENT and _CURRENT[0].pulse.is_due():
        _CURRENT[0].watch.computes(_CURRENT[0].pulse.seconds())


def current() -> World | None:
    """The world that this process is in; None where it is alone."""
    return _CURRENT[0] if _CURRENT else None


@contextmanager
def join_ranks(
    recipe_sha256: str, *, on_lost: OnLost, timeout_s: float = ranks.TIMEOUT_S, silence_s: float = ranks.SILENCE_S
) -> Iterator[World]:
    """Meet the other ranks, and leave them at the end.

    Args:
        recipe_sha256: of the composed recipe; the same everywhere, or nobody begins.
        on_lost: what to do once a rank gives no sign of life; it must end the process.
        timeout_s: how long the others may take to come, and each collective after that.
        silence_s: how long a rank may give no sign of life.

    Raises:
        UserError: the port is in use, ranks do not come, or have another recipe.
    """
    store = _meet(recipe_sha256, timeout_s)
    if torch.cuda.is_available():
        torch.cuda.set_device(ranks.local_rank() % torch.cuda.device_count())
    watch = RankWatch(PrefixStore("watch", connect(timeout_s, is_second=True)), ranks.rank(), ranks.count(),
                  silence_s=silence_s, on_lost=on_lost)  # fmt: skip
    watch.start()
    backend = "cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=PrefixStore("world", store), rank=ranks.rank(), world_size=ranks.count(),
                            timeout=timedelta(seconds=timeout_s))  # fmt: skip
    world = World(PrefixStore("orders", store), watch)
    _CURRENT[:] = [world]
    progress.ask(watch.facts if ranks.is_first() else None)
    yield world
    # Only at a good end: to take a group down whose members are gone may wait for ever.
    _CURRENT.clear()
    progress.ask(None)
    watch.stop()
    dist.destroy_process_group()


def _meet(recipe_sha256: str, timeout_s: float) -> Store:
    """The store, once every rank has come to it with the same recipe."""
    store = connect(timeout_s)
    try:
        names = [f"here/{rank}" for rank in range(ranks.count())]
        store.set(names[ranks.rank()], recipe_sha256)
        if absent := _absent_ranks(store, names, timeout_s):
            raise UserError(f"rank {', '.join(absent)} of {ranks.count()} did not join within {timeout_s:.0f} s; see "
                            f"its output, and check that it can reach {address()}")  # fmt: skip
        found = [store.get(name).decode() for name in names]
        if other := [str(rank) for rank, recipe in enumerate(found) if recipe != found[0]]:
            # The store goes with rank 0: the others must have read what they are refused for.
            store.set(f"read/{ranks.rank()}", "")
            if ranks.is_first():
                _absent_ranks(store, [f"read/{rank}" for rank in range(ranks.count())], _READ_S)
            raise UserError(
                f"rank {', '.join(other)} of {ranks.count()} was given a different recipe than rank 0 "
                f"({found[int(other[0])][:12]} instead of {found[0][:12]}): every machine needs the same file, changes "
                f"and ingredients. Nothing was run"
            )
    except RuntimeError as error:
        raise UserError(f"rank {ranks.rank()} reached rank 0 at {address()}, which ended before all ranks had "
                        f"joined; see its output ({beginning(error)})") from error  # fmt: skip
    return store


def _absent_ranks(store: Store, names: list[str], timeout_s: float) -> list[str]:
    """The ranks, by number, whose key of `names` is still not there after some time."""
    until = time.monotonic() + timeout_s
    while not store.check(names):
        if time.monotonic() > until:
            return [str(rank) for rank, name in enumerate(names) if not store.check([name])]
        time.sleep(_POLL_S)
    return []


_OF_A_COLLECTIVE = re.compile(r"gloo|NCCL|Connection closed by peer|Connection reset by peer", re.IGNORECASE)


def all_reduce_max(*numbers: float) -> tuple[float, ...]:
    """The greatest of each number over all ranks: one all-reduce of a few bytes. LostRank if a rank does not answer."""
    if not _is_distributed():
        return numbers
    found = torch.tensor(numbers, dtype=torch.float64)
    try:
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
    except RuntimeError as error:
        raise lost_rank_error(error) from error
    return tuple(found.tolist())


def first_says(text: str) -> str:
    """Rank 0's text, on every rank. LostRank if another rank died or does not answer."""
    return everyone_says(text)[0]


def everyone_says(text: str) -> list[str]:
    """Every rank's text, by rank. LostRank if another rank died or does not answer."""
    return [bytes(row).decode() for row in everyone_sends(text.encode())]


def everyone_sends(data: bytes) -> "Sequence[bytes | memoryview]":
    """Every rank's bytes, by rank. LostRank if another rank died or does not answer."""
    if not _is_distributed():
        return [data]
    world = dist.group.WORLD
    assert world is not None
    return Gather(world).all_gather(data)


def lost_rank_error(error: BaseException) -> LostRank:
    """Turn a collective's error into one that names the lost rank, if rank 0 knows it."""
    world = current()
    known = world.why_lost() if world is not None and dist.get_rank() == 0 else None
    if known is not None:
        return LostRank(f"{known}. Run the same command again to resume from the last checkpoint")
    # What a collective says, without the place in its source and its advice.
    text = re.sub(r"^\[[^\]]*\.\w+:\d+\] *", "", " ".join(str(error).split())).partition(". ")[0][:200]
    return LostRank(
        f"rank {dist.get_rank()} of {dist.get_world_size()} timed out waiting for the others ({text}). "
        f"Another rank died or hangs; see the end of its "
        f"log. Run the same command again to resume from the last checkpoint"
    )


def lost_behind(error: BaseException) -> LostRank | None:
    """What an exception is where it comes from a collective whose peers are gone; None where it is something else."""
    if not _is_distributed() or isinstance(error, LostRank) or not isinstance(error, RuntimeError):
        return None
    return lost_rank_error(error) if isinstance(error, dist.DistError) or _OF_A_COLLECTIVE.search(str(error)) else None


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
