"""Starts a command as several ranks on this machine.

The ranks find what torchrun would tell them in their environment. Unlike torchrun it passes signals and exit statuses
through unchanged. A checkpoint at a preemption may take minutes, and an error in a recipe is not retried.

Each rank leads a process group of its own. A Ctrl-C reaches only this process, which forwards it once; processes that a
rank has started end with it. A rank whose launcher dies sees the end of a pipe, and ends; `orphan_killer.py` ends the
group.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from nemo_vfm.core.errors import LostRank, NextPhase, UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.preemption import EXIT_CODE as PREEMPTED
from nemo_vfm.core.preemption import INTERRUPTED, handled_by, numbers
from nemo_vfm.core.process import how_it_ended, num_cores
from nemo_vfm.runtime import orphan_killer
from nemo_vfm.runtime.command import own_command

RESUME = "Run the same command again to resume from the last checkpoint"
PIPE = "NEMO_VFM_LAUNCHER"  #: names the open end of a pipe, by number, in a rank's environment
GRACE_S = 30.0  # for the others to find out whom they lost, and say it, once one has ended badly
_POLL_S = 0.05
_WELL = (0, PREEMPTED, NextPhase.exit_code, INTERRUPTED)  # all ranks end so together, once all is saved
_FINAL = (*_WELL, 2, 3)  # trying again would end in the same way, or is not wanted
_OWN = (*_FINAL, 1)  # what a rank that was neither killed nor crashed says of itself


def launch(
    words: Sequence[str], count: int, signals: Sequence[str], *, max_restarts: int = 0, advice: str = RESUME
) -> int:
    """Run `nemo-vfm` on so many ranks here, and again where one of them dies; the exit status.

    Args:
        words: behind `nemo-vfm`, the verb first.
        count: of ranks.
        signals: names of those that are passed on, as SIGINT is.
        max_restarts: so often all ranks are started anew after one has died.
        advice: what to do once one has died.
    """
    from nemo_vfm.core.device import gpus
    from nemo_vfm.parallel.ranks.rendezvous_store import serve

    if 0 < (found := len(gpus())) < count:  # a CPU takes any number
        raise UserError(
            f"the recipe is for {count} devices, but this machine has {found}; change the degrees under parallel: "
            f"to a product of {found}, or start it on more machines with srun or torchrun"
        )
    store, port = serve()  # here, so that it outlives the ranks and nobody else takes its port
    threads = max(1, num_cores() // count)
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    usual = {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": str(threads)}
    signals_sent: list[int] = []
    for attempt in range(max_restarts + 1):
        given = {
            "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": attempt,
            "TORCHELASTIC_MAX_RESTARTS": max_restarts,
        }  # fmt: skip
        environment = {**usual, **os.environ, **{name: str(value) for name, value in given.items()}}
        with (
            _Ranks(words, count, environment, signals_sent) as ranks,
            handled_by(ranks.hand_on, [signal.SIGINT, *numbers(signals)]),
        ):
            ranks.wait()
        if ranks.status in _FINAL or signals_sent or attempt == max_restarts:
            break
        warn(f"{ranks.story()}; restarting all {count} ({attempt + 1} of {max_restarts})")
    del store
    if ranks.status not in _FINAL and ranks.has_story():
        sys.stderr.write(f"{ranks.story()}. {advice}\n")
    return ranks.status


class _Ranks:
    """The processes of one attempt, each told its rank besides; signals that are handed on are added to those sent."""

    def __init__(
        self, words: Sequence[str], count: int, environment: Mapping[str, str], signals_sent: list[int]
    ) -> None:
        self._words, self._count, self._environment, self._signals_sent = words, count, environment, signals_sent
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: dict[int, int] = {}  # in the order of their ends
        self._ended_by_us: set[int] = set()
        self.status = 0

    def __enter__(self) -> "_Ranks":
        reading, self._pipe = os.pipe()
        command = own_command(*self._words)
        for rank in range(self._count):
            mine = {**self._environment, "RANK": str(rank), "LOCAL_RANK": str(rank), PIPE: str(reading)}
            self._running[rank] = subprocess.Popen(  # noqa: S603
                command, env=mine, pass_fds=[reading], stdin=subprocess.DEVNULL, process_group=0
            )
        groups = [str(process.pid) for process in self._running.values()]
        self._orphan_killer = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", str(Path(orphan_killer.__file__)), str(reading), *groups],
            pass_fds=[reading], stdin=subprocess.DEVNULL, process_group=0,
        )  # fmt: skip
        os.close(reading)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._orphan_killer.kill()  # before the pipe's end: other processes may have got the ranks' numbers
        self._orphan_killer.wait()
        os.close(self._pipe)

    def wait(self) -> None:
        """Until all have ended, the others soon after one that ended badly; then the status is that of all."""
        until = None
        while self._running:
            for rank, process in list(self._running.items()):
                if (code := process.poll()) is not None:
                    self._bury(rank, code)
                    until = until or (time.monotonic() + GRACE_S if code not in _WELL else None)
            if until is not None and time.monotonic() > until:
                self.kill()
            time.sleep(_POLL_S)
        code = self._ended[self._culprit()]
        if -code in self._signals_sent:  # it came before the rank could listen
            self.status = INTERRUPTED if -code == signal.SIGINT else PREEMPTED
        else:
            self.status = code if code in _OWN else LostRank.exit_code

    def has_story(self) -> bool:
        """Whether there is more to say than rank 0 has said itself."""
        return self._culprit() != 0 or self._ended[0] not in (*_OWN, LostRank.exit_code)

    def hand_on(self, number: int, frame: FrameType | None) -> None:
        """A signal to every rank, once each time that it comes; a third Ctrl-C ends them.

        What they have started themselves does not get it.
        """
        self._signals_sent.append(number)
        if self._signals_sent.count(signal.SIGINT) > 2:
            self.kill()
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)

    def kill(self) -> None:
        """End all that still run, with what they have started."""
        for rank, process in list(self._running.items()):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self._ended_by_us.add(rank)
            self._bury(rank, process.wait())

    def story(self) -> str:
        """Which rank ended first, and how."""
        rank = self._culprit()
        is_run = self._words[0] == "run"
        where = f"; its output is in ranks/rank-{rank}.log of the run folder" if rank and is_run else ""
        return f"rank {rank} of {self._count} {how_it_ended(self._ended[rank])}{where}"

    def _bury(self, rank: int, code: int) -> None:
        process = self._running.pop(rank)
        self._ended[rank] = code
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # workers that it left behind

    def _culprit(self) -> int:
        """The first that ended for a reason of its own; rank 0 where it could say one, since its words were shown."""
        own = [rank for rank, code in self._ended.items()
               if code not in (0, LostRank.exit_code) and rank not in self._ended_by_us]  # fmt: skip
        lost = [rank for rank, code in self._ended.items() if code]
        if 0 in own and self._ended[0] > 0:
            return 0
        return next(iter(own or lost), 0)
